//! Which subscriber is to serve which session. What was ordered is repeated until it is so: an MCP server would claim
//! again at its client's next request.

use std::time::Duration;

use super::super::args::Role;
use super::super::ledger::Who;
use super::super::lines::Order;
use super::{Crew, State};

/// Between a claim that failed and the next one.
const AGAIN: Duration = Duration::from_millis(100);
/// An orderly stop that is not answered by then is overtaken by a claim.
const HAND_OVER: Duration = Duration::from_secs(3);

impl State {
    fn is_up(&self, subscriber: u32) -> bool {
        self.subscribers.get(subscriber as usize).is_some_and(|m| m.up && m.ready)
    }

    /// Any that is up, another one than `not` when there is one.
    fn any_up(&mut self, not: u32) -> Option<u32> {
        let up: Vec<u32> = (0..).take(self.subscribers.len()).filter(|&n| self.is_up(n)).collect();
        let others: Vec<u32> = up.iter().copied().filter(|&n| n != not).collect();
        let choice = if others.is_empty() { up } else { others };
        (!choice.is_empty()).then(|| choice[self.chance.usize(..choice.len())])
    }

    fn serve(&mut self, session: u32, subscriber: u32) {
        if let Some(desired) = self.desired.get_mut(session as usize) {
            *desired = subscriber;
        }
        if let Some(member) = self.subscribers.get(subscriber as usize) {
            member.order(Order::Serve(session));
        }
    }
}

impl Crew {
    /// Has a subscriber claim a session, whoever has it.
    pub(super) fn place(&self, session: u32, subscriber: u32) {
        self.state().serve(session, subscriber);
    }

    /// Moves any session to another subscriber: by a claim over the owner's head, or in good order.
    pub fn move_any(&self) {
        let mut state = self.state();
        let sessions = state.desired.len();
        let session = state.chance.usize(..sessions);
        let from = state.desired[session];
        let Some(to) = state.any_up(from).filter(|&to| to != from) else { return };
        let session = session as u32;
        if state.chance.bool() || !state.is_up(from) {
            return state.serve(session, to);
        }
        state.stopping.push((session, from));
        state.subscribers[from as usize].order(Order::Stop(session));
        let crew = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(HAND_OVER).await;
            crew.handed_over(session, from, to);
        });
    }

    /// A session whose owner was told to stop goes to the next one: once, at the answer or when it took too long.
    fn handed_over(&self, session: u32, from: u32, to: u32) {
        let mut state = self.state();
        let Some(at) = state.stopping.iter().position(|&s| s == (session, from)) else { return };
        state.stopping.swap_remove(at);
        if state.closing || state.desired[session as usize] != from {
            return;
        }
        let to = if state.is_up(to) { Some(to) } else { state.any_up(from) };
        if let Some(to) = to {
            state.serve(session, to);
        }
    }

    /// Everything of a subscriber that is gone, or hears nothing, goes to the others; says what.
    pub fn evacuate(&self, subscriber: u32) -> Vec<u32> {
        let mut state = self.state();
        let sessions: Vec<u32> =
            (0..).zip(state.desired.clone()).filter(|&(_, s)| s == subscriber).map(|(n, _)| n).collect();
        for &session in &sessions {
            if let Some(to) = state.any_up(subscriber) {
                state.serve(session, to);
            }
        }
        sessions
    }

    /// The answer to an order to serve.
    pub(super) fn served(&self, (_, subscriber, life): Who, session: u32, done: bool) {
        let state = self.state();
        let wanted = state.desired.get(session as usize).copied() == Some(subscriber);
        if !wanted && done && !state.stopping.iter().any(|s| s.0 == session) {
            // Too late: it is somebody else's by now.
            if let Some(member) = state.subscribers.get(subscriber as usize).filter(|m| m.life == life) {
                member.order(Order::Stop(session));
            }
        }
        drop(state);
        if wanted && !done {
            self.serve_again(session, subscriber);
        }
    }

    /// A subscriber does not serve a session any more. When it should, it is told so once more: a claim that was
    /// overtaken on its way may come after a later one.
    pub(super) fn ended(&self, (role, subscriber, _): Who, session: u32) {
        if role != Role::Subscriber {
            return;
        }
        let ordered = self.state().stopping.contains(&(session, subscriber));
        if ordered {
            let to = self.state().any_up(subscriber);
            return self.handed_over(session, subscriber, to.unwrap_or(subscriber));
        }
        if self.state().desired.get(session as usize).copied() == Some(subscriber) {
            self.serve_again(session, subscriber);
        }
    }

    fn serve_again(&self, session: u32, subscriber: u32) {
        let crew = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(AGAIN).await;
                let mut state = crew.state();
                if state.closing || state.desired[session as usize] != subscriber {
                    return;
                }
                let to = if state.is_up(subscriber) { Some(subscriber) } else { state.any_up(subscriber) };
                if let Some(to) = to {
                    return state.serve(session, to);
                }
            }
        });
    }
}
