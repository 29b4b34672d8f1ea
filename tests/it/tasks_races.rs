//! Tasks: calls that meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::CancellationToken;
use mcp_courier::tasks::{InputRequired, Leg, LegOutcome, NewTask, TaskCancel, TaskStatus};
use serde_json::json;

use crate::support::fixture::Fixture;
use crate::support::wait::wait_until;
use crate::tasks::{answer, gated, key, ms, scope, tasks, text, text_of, wait_count, wait_status};

#[tokio::test(flavor = "multi_thread")]
async fn two_updates_that_meet_start_one_leg() {
    let t = Fixture::new("tasks_updates").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let second_legs = Arc::new(AtomicUsize::new(0));
    let count = second_legs.clone();
    let handler = move |leg: Leg| {
        let count = count.clone();
        async move {
            if leg.number == 0 {
                let asked = InputRequired::new().request("a", &json!({})).expect("JSON");
                return LegOutcome::InputRequired(asked.request("b", &json!({})).expect("JSON"));
            }
            count.fetch_add(1, Ordering::SeqCst);
            text(&format!("{}{}", leg.answers["a"], leg.answers["b"]))
        }
    };
    let workers = [
        tasks(&one).worker().start(handler.clone()).await.expect("started"),
        tasks(&other).worker().start(handler).await.expect("started"),
    ];
    for round in 1..=20 {
        let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
        wait_status(&tasks(&one), &u, &id, TaskStatus::InputRequired).await;
        let update = |who: usize| {
            let tasks = tasks(if who == 1 { &one } else { &other });
            let answers = [("a.1".to_owned(), answer(json!(who))), ("b.1".to_owned(), answer(json!(who)))];
            let (u, id) = (u.clone(), id.clone());
            async move { tasks.update(&u, &id, answers).await.expect("acknowledged").accepted }
        };
        let (first, second) = tokio::join!(update(1), update(2));
        assert_eq!(first + second, 2, "one of them found the requests open");
        let done = wait_status(&tasks(&one), &u, &id, TaskStatus::Completed).await;
        assert_eq!(text_of(&done), if first == 2 { "11" } else { "22" });
        assert_eq!(second_legs.load(Ordering::SeqCst), round);
    }
    for worker in workers {
        worker.shutdown(ms(2000)).await;
    }
    t.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_and_completing_have_one_winner_and_the_end_never_changes() {
    let t = Fixture::new("tasks_winner").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let handler = move |leg: Leg| {
        let count = count.clone();
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(ms(fastrand::u64(0..4))).await;
            if leg.task.is_cancel_requested() { LegOutcome::Cancelled } else { text("done") }
        }
    };
    let worker = tasks(&other).worker().start(handler).await.expect("started");
    let (mut completed, mut cancelled) = (0, 0);
    for round in 0..100 {
        let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
        // Before, while, and after it runs.
        if round % 2 == 0 {
            tokio::time::sleep(ms(fastrand::u64(1..4))).await;
        }
        let before = ran.load(Ordering::SeqCst);
        let answered = tasks(&one).cancel(&u, &id).await.expect("acknowledged");
        let end = wait_until("an end", Duration::from_secs(10), || async {
            let task = tasks(&one).get(&u, &id).await.expect("found");
            if task.status.is_terminal() { Ok(task) } else { Err(format!("{task:?}")) }
        })
        .await;
        match (answered, end.status) {
            (TaskCancel::Finished | TaskCancel::Asked, TaskStatus::Completed) => completed += 1,
            (TaskCancel::Cancelled, TaskStatus::Cancelled) => {
                assert_eq!(ran.load(Ordering::SeqCst), before, "nobody runs what was cancelled in the queue");
                cancelled += 1;
            }
            (TaskCancel::Asked, TaskStatus::Cancelled) => cancelled += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(end.status == TaskStatus::Completed, end.result.is_some());
        let again = tasks(&other).cancel(&u, &id).await.expect("acknowledged");
        assert_eq!(again, TaskCancel::Finished);
        let later = tasks(&other).get(&u, &id).await.expect("found");
        assert_eq!(
            (later.status, later.revision, later.last_updated_at),
            (end.status, end.revision, end.last_updated_at)
        );
    }
    assert!(completed > 0 && cancelled > 0, "{completed} completed, {cancelled} cancelled");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// Two workers of four processes each: no leg runs twice, none is left.
#[tokio::test(flavor = "multi_thread")]
async fn competing_workers_run_each_leg_once() {
    let t = Fixture::new("tasks_compete").await;
    let u = scope("u");
    let ran: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let mut workers = Vec::new();
    let mut couriers = Vec::new();
    for _ in 0..4 {
        let courier = t.courier().await;
        for _ in 0..2 {
            let ran = ran.clone();
            let handler = move |leg: Leg| {
                ran.lock().expect("not poisoned").push(leg.id.to_string());
                async move {
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
                    text("done")
                }
            };
            workers.push(tasks(&courier).worker().concurrency(3).start(handler).await.expect("started"));
        }
        couriers.push(courier);
    }
    let mut made = tokio::task::JoinSet::new();
    for n in 0..400 {
        let (tasks, u) = (tasks(&couriers[n % 4]), u.clone());
        made.spawn(async move { tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id });
    }
    let mut ids = made.join_all().await;
    for id in &ids {
        wait_status(&tasks(&couriers[0]), &u, id, TaskStatus::Completed).await;
    }
    let mut ran = ran.lock().expect("not poisoned").clone();
    ran.sort();
    ids.sort();
    assert_eq!(ran, ids);
    for worker in workers {
        worker.shutdown(ms(2000)).await;
    }
    t.finish().await;
}

/// The lease of a worker that was away ran out, and another one took the leg: what the first one brings is refused.
#[tokio::test]
async fn the_late_result_of_a_worker_that_lost_its_lease_is_refused() {
    let t = Fixture::new("tasks_zombie").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let gate = CancellationToken::new();
    let started = Arc::new(AtomicUsize::new(0));
    let zombie = gated(&gate, &started, |_| "the zombie's".into());
    let first = tasks(&one).worker().lease(Duration::from_secs(60)).start(zombie).await.expect("started");
    let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_count("it runs", &started, 1).await;
    // Its lease ends.
    let now = t.server_ms().await;
    let _: u64 = t.ask(&format!("HSET {} due {now}", t.key(&key("u", &id), ""))).await;
    let _: u64 = t.ask(&format!("ZADD {} {now} default:u:{id}", t.key("legs:default", ""))).await;
    let second =
        tasks(&other).worker().start(|_: Leg| async { text("the second one's") }).await.expect("started");
    let done = wait_status(&tasks(&one), &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "the second one's");
    gate.cancel();
    wait_until("the zombie gave up", Duration::from_secs(5), || async {
        if first.holding() == 0 { Ok(()) } else { Err("it holds on".into()) }
    })
    .await;
    let later = tasks(&one).get(&u, &id).await.expect("found");
    assert_eq!((text_of(&later).as_str(), later.revision), ("the second one's", done.revision));
    first.shutdown(ms(2000)).await;
    second.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A test runs on one thread: if the renewal were among the handlers, it would stand still with them.
#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_its_lease() {
    let t = Fixture::new("tasks_blocking").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = {
        let runs = runs.clone();
        move |_: Leg| {
            let runs = runs.clone();
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(ms(1500));
                text("done")
            }
        }
    };
    let quick = |c| tasks(c).worker().concurrency(1).lease(ms(300));
    let first = quick(&one).start(handler.clone()).await.expect("started");
    let second = quick(&other).start(handler).await.expect("started");
    let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_status(&tasks(&one), &u, &id, TaskStatus::Completed).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    first.shutdown(ms(2000)).await;
    second.shutdown(ms(2000)).await;
    t.finish().await;
}

/// Two ways to answer at once: the leg that waits in place goes on once, with the first answer.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_answers_to_a_leg_that_waits_one_counts() {
    let t = Fixture::new("tasks_answers").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let handler = |leg: Leg| async move {
        match leg.task.request_input("q", &json!({"method": "x"})).await {
            Ok(answer) => text(answer.get()),
            Err(exit) => exit.into(),
        }
    };
    let worker = tasks(&one).worker().start(handler).await.expect("started");
    for _ in 0..20 {
        let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
        wait_status(&tasks(&one), &u, &id, TaskStatus::InputRequired).await;
        let (a, b) = (tasks(&one), tasks(&other));
        let (a, b) = tokio::join!(
            a.update(&u, &id, [("q".to_owned(), answer(json!(1)))]),
            b.update(&u, &id, [("q".to_owned(), answer(json!(2)))]),
        );
        let (a, b) = (a.expect("acknowledged").accepted, b.expect("acknowledged").accepted);
        assert_eq!(a + b, 1);
        let done = wait_status(&tasks(&one), &u, &id, TaskStatus::Completed).await;
        assert_eq!(text_of(&done), if a == 1 { "1" } else { "2" });
    }
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}
