//! What may happen: one call of a script, or something between two calls.

use proptest::prelude::*;

/// Owners are numbered; each has a name that is new after a crash. Sessions are numbered. An owner uses what it
/// remembers: the epoch of its claim, the receipts it was given.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Time passes.
    Wait(u32),
    /// The owner's process is gone between two calls, and comes back as another node that remembers nothing.
    Crash(usize),
    /// The owner's bell connection is cut, or opened again.
    Deaf(usize),
    /// The stored owners and leases are lost.
    LoseOwners,
    /// A failover lost the newest claim of a session: an older one of the same node is stored.
    LoseClaim(usize),
    /// Messages of one call.
    Push {
        messages: Vec<Said>,
        marking: Marking,
    },
    Coalesce {
        message: Said,
        marking: Marking,
    },
    Claim {
        owner: usize,
        keep: bool,
        sessions: Vec<usize>,
    },
    Pop {
        owner: usize,
        order: Order,
        sessions: Vec<usize>,
        want: u8,
        budget: u32,
    },
    /// Acks the first so many of what the owner was given, for several sessions.
    Ack {
        owner: usize,
        order: Order,
        budget: u32,
        parts: Vec<Acked>,
    },
    /// The head of what the owner was given failed.
    Requeue {
        owner: usize,
        order: Order,
        session: usize,
        attempt: u8,
        max: u8,
        delay: u32,
    },
    Release {
        owner: usize,
        sessions: Vec<usize>,
    },
    Heartbeat {
        owner: usize,
        lease: u32,
        session: usize,
    },
    Leave {
        owner: usize,
    },
    Sweep {
        limit: u8,
        grace: u32,
    },
    Tidy {
        sessions: Vec<usize>,
    },
    /// Forgets the owners that the last sweep found.
    Reap {
        grace: u32,
    },
    Stats {
        sessions: Vec<usize>,
    },
    Overview {
        offset: u8,
        limit: u8,
    },
    DeadList {
        session: usize,
        offset: u8,
        limit: u8,
    },
    DeadRequeue {
        session: usize,
        id: Option<u8>,
        ttl: u32,
        most: u8,
        limit: u8,
    },
    DeadPurge {
        session: usize,
        id: Option<u8>,
    },
}

/// What a producer says of a message.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) session: usize,
    pub(super) id: u8,
    pub(super) ttl: u32,
    pub(super) most: u8,
    pub(super) drop_oldest: bool,
    pub(super) large: bool,
}

impl Said {
    pub(super) fn body(&self) -> String {
        if self.large { "x".repeat(300) } else { format!("<{}>", super::expect::name(self.id)) }
    }

    pub(super) fn policy(&self) -> &'static str {
        if self.drop_oldest { "drop_oldest" } else { "refuse" }
    }
}

/// How the ids of a call are marked as known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marking {
    /// 0: not at all.
    pub(super) dedupe: u32,
    /// They are a producer's own: marked by bits of one block.
    pub(super) own_id: bool,
}

/// One session of an ack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    pub(super) session: usize,
    pub(super) receipts: usize,
    pub(super) want: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Fifo,
    Tail,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        if self == Order::Tail { "tail" } else { "fifo" }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Wait(ms) => write!(f, "{ms} ms pass"),
            Step::Crash(owner) => write!(f, "owner {owner} crashes"),
            Step::Deaf(owner) => write!(f, "owner {owner} loses its bell, or finds it again"),
            Step::LoseOwners => f.write_str("the stored owners are lost"),
            Step::LoseClaim(session) => write!(f, "the newest claim of s{session} is lost"),
            call => write!(f, "{call:?}"),
        }
    }
}

pub(super) const OWNERS: usize = 3;
pub(super) const SESSIONS: usize = 3;

fn owner() -> impl Strategy<Value = usize> {
    0..OWNERS
}

fn session() -> impl Strategy<Value = usize> {
    // Most calls meet in one session.
    prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(2)]
}

fn sessions() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![3 => session().prop_map(|s| vec![s]), 1 => Just(vec![0, 1, 2]), 1 => Just(vec![1, 0])]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![4 => Just(Order::Fifo), 1 => Just(Order::Tail)]
}

fn ms() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1), Just(100), Just(1_000), Just(10_000), Just(100_000)]
}

fn id() -> impl Strategy<Value = u8> {
    0..8_u8
}

/// One script.
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let said = || {
        let most = prop_oneof![4 => Just(100), 1 => Just(1), 1 => Just(2)];
        (session(), id(), ms(), most, any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(session, id, ttl, most, drop_oldest, large)| Said {
                session,
                id,
                ttl,
                most,
                drop_oldest,
                large,
            },
        )
    };
    let marking = || {
        (prop_oneof![Just(0), Just(0), Just(1_000), Just(60_000)], prop::bool::weighted(0.3))
            .prop_map(|(dedupe, own_id)| Marking { dedupe, own_id })
    };
    // Messages of a call often share their options: those of one producer do.
    let alike = (prop::collection::vec(said(), 2..6)).prop_map(|mut all| {
        let like = all[0].clone();
        for said in &mut all {
            (said.ttl, said.most, said.drop_oldest) = (like.ttl, like.most, like.drop_oldest);
        }
        all
    });
    let messages = prop_oneof![
        3 => said().prop_map(|said| vec![said]),
        1 => prop::collection::vec(said(), 2..6),
        1 => alike,
    ];
    let push = (messages, marking()).prop_map(|(messages, marking)| Step::Push { messages, marking });
    let coalesce = (said(), marking()).prop_map(|(message, marking)| Step::Coalesce { message, marking });
    let claim = (owner(), prop::bool::weighted(0.3), sessions())
        .prop_map(|(owner, keep, sessions)| Step::Claim { owner, keep, sessions });
    let want = || prop_oneof![1 => Just(0), 2 => Just(1), 4 => Just(64)];
    let budget = || prop_oneof![1 => Just(1), 1 => Just(150), 4 => Just(1 << 20)];
    let pop = (owner(), order(), sessions(), want(), budget()).prop_map(
        |(owner, order, sessions, want, budget)| Step::Pop { owner, order, sessions, want, budget },
    );
    let ack = (owner(), order(), budget(), sessions(), prop::collection::vec((0..4_usize, want()), 3))
        .prop_map(|(owner, order, budget, sessions, each)| {
            let part = |(session, (receipts, want))| Acked { session, receipts, want };
            Step::Ack { owner, order, budget, parts: sessions.into_iter().zip(each).map(part).collect() }
        });
    let requeue = (owner(), order(), session(), 1..4_u8, prop_oneof![1 => Just(0), 4 => Just(3)], ms())
        .prop_map(|(owner, order, session, attempt, max, delay)| Step::Requeue {
            owner,
            order,
            session,
            attempt,
            max,
            delay,
        });
    let dead_id = || prop_oneof![2 => Just(None), 1 => id().prop_map(Some)];
    let step = prop_oneof![
        10 => ms().prop_map(Step::Wait),
        2 => owner().prop_map(Step::Crash),
        1 => owner().prop_map(Step::Deaf),
        1 => Just(Step::LoseOwners),
        1 => session().prop_map(Step::LoseClaim),
        16 => push,
        4 => coalesce,
        10 => claim,
        10 => pop,
        14 => ack,
        8 => requeue,
        3 => (owner(), sessions()).prop_map(|(owner, sessions)| Step::Release { owner, sessions }),
        5 => (owner(), ms(), session()).prop_map(|(owner, lease, session)| Step::Heartbeat { owner, lease, session }),
        1 => owner().prop_map(|owner| Step::Leave { owner }),
        5 => (1..4_u8, ms()).prop_map(|(limit, grace)| Step::Sweep { limit, grace }),
        2 => sessions().prop_map(|sessions| Step::Tidy { sessions }),
        3 => ms().prop_map(|grace| Step::Reap { grace }),
        1 => sessions().prop_map(|sessions| Step::Stats { sessions }),
        1 => (0..2_u8, 0..3_u8).prop_map(|(offset, limit)| Step::Overview { offset, limit }),
        1 => (session(), 0..2_u8, 0..4_u8)
            .prop_map(|(session, offset, limit)| Step::DeadList { session, offset, limit }),
        3 => (session(), dead_id(), ms(), 1..6_u8, 1..4_u8).prop_map(|(session, id, ttl, most, limit)| {
            Step::DeadRequeue { session, id, ttl, most, limit }
        }),
        1 => (session(), dead_id()).prop_map(|(session, id)| Step::DeadPurge { session, id }),
    ];
    prop::collection::vec(step, 1..70)
}
