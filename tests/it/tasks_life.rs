//! Tasks: how long they live, what they may cost, and how they are stopped.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mcp_courier::tasks::{InputRequired, Leg, LegOutcome, NewTask, TaskCancel, TaskExit, TaskStatus};
use mcp_courier::{CancellationToken, Courier, Error};
use serde_json::json;
use tokio::sync::mpsc;

use crate::support::fixture::Fixture;
use crate::support::private::{Options, private_or_skip};
use crate::support::wait::wait_until;
use crate::tasks::{answer, error_of, key, ms, scope, tasks, text, text_of, wait_count, wait_status};

/// Until a task is not found any more; how long that took.
async fn wait_gone(tasks: &mcp_courier::tasks::Tasks, id: &str) -> Duration {
    let begin = Instant::now();
    wait_until("it is gone", Duration::from_secs(10), || async {
        match tasks.get(&scope("u"), id).await {
            Err(Error::TaskNotFound) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    begin.elapsed()
}

/// When the key of a task goes, by the server's clock: not known better than the questions for it took.
async fn deadline(t: &Fixture, id: &str) -> RangeInclusive<u64> {
    let before = t.server_ms().await;
    let left: i64 = t.ask(&format!("PTTL {}", t.key(&key("u", id), ""))).await;
    let left = u64::try_from(left).expect("it expires");
    before + left - 5..=t.server_ms().await + left + 5
}

/// (a) Work that takes longer than the time to live is no idle task.
#[tokio::test]
async fn f43_work_longer_than_the_ttl_is_extended_and_never_shows_a_wrong_end() {
    let t = Fixture::new("f43_a").await;
    let tasks = tasks(&t.courier().await);
    let handler = |leg: Leg| async move {
        for n in 0..25 {
            leg.task.set_status_message(format!("step {n}"));
            tokio::time::sleep(ms(100)).await;
        }
        text("done")
    };
    let worker = tasks.worker().lease(ms(300)).start(handler).await.expect("started");
    let id = tasks.create(NewTask::new(&scope("u"), "x").ttl(ms(800))).await.expect("made").task_id;
    let mut longest = 0;
    let done = loop {
        let task = tasks.get(&scope("u"), &id).await.expect("it works: it is there");
        longest = longest.max(task.ttl_ms);
        match task.status {
            TaskStatus::Working => tokio::time::sleep(ms(50)).await,
            TaskStatus::Completed => break task,
            other => panic!("{other:?}"),
        }
    };
    assert!(done.ttl_ms >= 3300 && done.ttl_ms >= longest, "{}", done.ttl_ms);
    // (c) The result is there for the time that was told, and no longer.
    let created = t.server_ms().await;
    let at = deadline(&t, &id).await;
    t.wait_server_ms(at.start() - 500).await;
    assert_eq!(text_of(&tasks.get(&scope("u"), &id).await.expect("still there")), "done");
    wait_gone(&tasks, &id).await;
    assert!(t.server_ms().await >= *at.start() && created < *at.start(), "{created}, {at:?}");
    worker.shutdown(ms(2000)).await;
    assert_eq!(t.keys().await.iter().filter(|(name, _)| name.starts_with("t:")).count(), 0);
    t.finish().await;
}

/// (b) Nothing of a parked task has a shorter life of its own.
#[tokio::test]
async fn f43_a_parked_task_waits_its_whole_ttl_and_expires_as_one() {
    let t = Fixture::new("f43_b").await;
    let tasks = tasks(&t.courier().await);
    let ask = |_: Leg| async {
        LegOutcome::InputRequired(InputRequired::new().request("q", &json!({})).expect("JSON"))
    };
    let worker = tasks.worker().lease(ms(100)).start(ask).await.expect("started");
    let id = tasks.create(NewTask::new(&scope("u"), "x").ttl(ms(2000))).await.expect("made").task_id;
    let parked = wait_status(&tasks, &scope("u"), &id, TaskStatus::InputRequired).await;
    // Told and true: what the client computes is when the key goes.
    let created: u64 = t.ask(&format!("HGET {} created", t.key(&key("u", &id), ""))).await;
    let at = deadline(&t, &id).await;
    assert!(at.contains(&(created + parked.ttl_ms)), "{created} + {} is not {at:?}", parked.ttl_ms);
    t.wait_server_ms(at.start() - 500).await;
    let task = tasks.get(&scope("u"), &id).await.expect("there");
    assert_eq!((task.status, task.revision), (TaskStatus::InputRequired, parked.revision));
    wait_gone(&tasks, &id).await;
    let late = tasks.update(&scope("u"), &id, [("q.1".to_owned(), answer(json!(1)))]).await;
    assert_eq!(late.expect_err("gone"), Error::TaskNotFound);
    worker.shutdown(ms(2000)).await;
    assert_eq!(t.keys().await.iter().filter(|(name, _)| name.starts_with("t:")).count(), 0);
    t.finish().await;
}

/// (d) With a fixed time to live work may come too late. Its worker learns that, and makes no key.
#[tokio::test]
async fn f43_a_finish_after_the_end_finds_the_task_gone_and_creates_no_key() {
    let t = Fixture::new("f43_d").await;
    let tasks = tasks(&t.courier().await).fixed_ttl();
    let (told, mut exits) = mpsc::unbounded_channel();
    let handler = move |leg: Leg| {
        let told = told.clone();
        async move {
            if &leg.call[..] == b"blocks" {
                // It cannot be dropped, and brings its result after the end.
                std::thread::sleep(ms(1200));
                return text("too late");
            }
            let exit = leg.task.request_input("q", &json!({})).await.expect_err("no answer");
            told.send(exit.clone()).expect("heard");
            exit.into()
        }
    };
    let worker = tasks.worker().start(handler).await.expect("started");
    let make = |call: &'static str| tasks.create(NewTask::new(&scope("u"), call).ttl(ms(600)));
    let (blocks, asks) = (make("blocks").await.expect("made"), make("asks").await.expect("made"));
    assert_eq!(asks.ttl_ms, 600);
    wait_gone(&tasks, &asks.task_id).await;
    wait_gone(&tasks, &blocks.task_id).await;
    let begin = Instant::now();
    assert_eq!(exits.recv().await, Some(TaskExit::Expired));
    assert!(begin.elapsed() < ms(3000), "{:?}", begin.elapsed());
    wait_until("nothing is held", ms(3000), || async {
        if worker.holding() == 0 { Ok(()) } else { Err(worker.holding().to_string()) }
    })
    .await;
    worker.shutdown(ms(2000)).await;
    assert_eq!(t.keys().await.iter().filter(|(name, _)| name.starts_with("t:")).count(), 0);
    t.finish().await;
}

/// A waiter ends with its task, within half a second, and says why.
#[tokio::test]
async fn f38_who_waits_for_an_answer_hears_the_end_of_the_task_of_the_worker_and_of_the_wish() {
    let t = Fixture::new("f38").await;
    let tasks = tasks(&t.courier().await);
    let (told, mut exits) = mpsc::unbounded_channel();
    let handler = move |leg: Leg| {
        let told = told.clone();
        async move {
            let exit = leg.task.request_input("q", &json!({})).await.expect_err("no answer");
            told.send(exit.clone()).expect("heard");
            exit.into()
        }
    };
    // Renewals are far apart: it is not by them.
    let worker = tasks.worker().lease(Duration::from_secs(60)).start(handler).await.expect("started");
    let u = scope("u");
    let id = tasks.create(NewTask::new(&u, "x").ttl(ms(1000))).await.expect("made").task_id;
    wait_status(&tasks, &u, &id, TaskStatus::InputRequired).await;
    wait_gone(&tasks, &id).await;
    let begin = Instant::now();
    assert_eq!(exits.recv().await, Some(TaskExit::Expired));
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());

    let ids = [
        tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id,
        tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id,
    ];
    for id in &ids {
        wait_status(&tasks, &u, id, TaskStatus::InputRequired).await;
    }
    tasks.cancel(&u, &ids[0]).await.expect("asked");
    assert_eq!(exits.recv().await, Some(TaskExit::Cancelled));
    let end = worker.shutdown(Duration::from_secs(5)).await;
    assert_eq!(exits.recv().await, Some(TaskExit::ShuttingDown));
    assert_eq!((end.interrupted, end.abandoned), (0, 0));
    assert_eq!(tasks.get(&u, &ids[1]).await.expect("given back").status, TaskStatus::InputRequired);
    t.finish().await;
}

/// Two clocks: one for work, one for people.
#[tokio::test]
async fn f38_a_work_budget_stands_still_while_a_leg_waits_for_a_person() {
    let t = Fixture::new("f38_budget").await;
    let tasks = tasks(&t.courier().await);
    let handler = |leg: Leg| async move {
        match &leg.call[..] {
            b"waits" => match leg.task.request_input("q", &json!({})).await {
                Ok(answer) => text(answer.get()),
                Err(exit) => exit.into(),
            },
            _ => std::future::pending().await,
        }
    };
    let worker = tasks.worker().work_budget(ms(400)).max_attempts(1).start(handler).await.expect("started");
    let u = scope("u");
    let waits = tasks.create(NewTask::new(&u, "waits")).await.expect("made").task_id;
    let works = tasks.create(NewTask::new(&u, "works")).await.expect("made").task_id;
    // The one that works for ever is over; the other one waits all the while.
    let failed = wait_status(&tasks, &u, &works, TaskStatus::Failed).await;
    assert_eq!(error_of(&failed).1, "given up after 1 attempts: it worked longer than 400ms");
    t.wait_server_ms(t.server_ms().await + 400).await;
    tasks.update(&u, &waits, [("q".to_owned(), answer(json!("late")))]).await.expect("taken");
    let done = wait_status(&tasks, &u, &waits, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "\"late\"");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// Not by the renewal of the lease, which is twenty seconds away.
#[tokio::test]
async fn cancelling_reaches_a_running_worker_by_signal() {
    let t = Fixture::new("tasks_cancel").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let running = Arc::new(AtomicUsize::new(0));
    let count = running.clone();
    let handler = move |leg: Leg| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            leg.task.cancelled().await;
            LegOutcome::Cancelled
        }
    };
    let worker = tasks(&other).worker().lease(Duration::from_secs(60)).start(handler).await.expect("started");
    let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_count("it runs", &running, 1).await;
    let begin = Instant::now();
    assert_eq!(tasks(&one).cancel(&u, &id).await.expect("asked"), TaskCancel::Asked);
    wait_status(&tasks(&one), &u, &id, TaskStatus::Cancelled).await;
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn cancelling_ends_what_is_queued_delayed_or_parked_at_once() {
    let t = Fixture::new("tasks_cancel_idle").await;
    let tasks = tasks(&t.courier().await);
    let u = scope("u");
    let queued = tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let delayed =
        tasks.create(NewTask::new(&u, "x").delay(Duration::from_secs(30))).await.expect("made").task_id;
    for id in [&queued, &delayed] {
        assert_eq!(tasks.cancel(&u, id).await.expect("done"), TaskCancel::Cancelled);
        assert_eq!(tasks.get(&u, id).await.expect("found").status, TaskStatus::Cancelled);
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let handler = move |_: Leg| {
        count.fetch_add(1, Ordering::SeqCst);
        async { LegOutcome::InputRequired(InputRequired::new().request("q", &json!({})).expect("JSON")) }
    };
    let worker = tasks.worker().start(handler).await.expect("started");
    let parked = tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_status(&tasks, &u, &parked, TaskStatus::InputRequired).await;
    assert_eq!(tasks.cancel(&u, &parked).await.expect("done"), TaskCancel::Cancelled);
    let late = tasks.update(&u, &parked, [("q.1".to_owned(), answer(json!(1)))]).await.expect("ignored");
    assert_eq!((late.accepted, late.open), (0, 0));
    let end = tasks.get(&u, &parked).await.expect("found");
    assert_eq!((end.status, end.input_requests.is_none()), (TaskStatus::Cancelled, true));
    assert_eq!(runs.load(Ordering::SeqCst), 1, "what was cancelled in the queue never ran");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_result_over_the_limit_fails_the_task_and_says_so() {
    let t = Fixture::new("tasks_large").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let u = scope("u");
    let handler = |leg: Leg| async move { text(&"x".repeat(leg.call.len())) };
    let worker = tasks.worker().max_result_bytes(1000).start(handler).await.expect("started");
    let fits = tasks.create(NewTask::new(&u, "x".repeat(900))).await.expect("made").task_id;
    wait_status(&tasks, &u, &fits, TaskStatus::Completed).await;
    let large = tasks.create(NewTask::new(&u, "x".repeat(1000))).await.expect("made").task_id;
    let failed = wait_status(&tasks, &u, &large, TaskStatus::Failed).await;
    let (code, message) = error_of(&failed);
    assert_eq!((code, message.as_str()), (-32603, "the result has 1039 bytes, the limit is 1000"));
    assert_eq!(failed.status_message.as_deref(), Some("the result has 1039 bytes, the limit is 1000"));
    let too_large = tasks.create(NewTask::new(&u, vec![0; (4 << 20) + 1])).await.expect_err("refused");
    assert!(matches!(too_large, Error::TooLarge { what: "task", .. }), "{too_large}");
    let full = tasks.clone().max_queued(0).create(NewTask::new(&u, "x")).await.expect_err("refused");
    assert!(matches!(full, Error::TasksFull { limit: 0, .. }) && full.is_retryable(), "{full}");
    let long = tasks.clone().longest(ms(10)).create(NewTask::new(&u, "x")).await.expect_err("refused");
    assert!(long.to_string().contains("over the longest life"), "{long}");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// No renewal of interest, no ring, no timer of the task's: a backoff is a place in the index.
#[tokio::test]
async fn a_delayed_leg_starts_in_its_time_and_not_before() {
    let t = Fixture::new("tasks_delay").await;
    let tasks = tasks(&t.courier().await);
    let u = scope("u");
    let worker = tasks.worker().start(|_: Leg| async { text("done") }).await.expect("started");
    let begin = Instant::now();
    let id = tasks.create(NewTask::new(&u, "x").delay(ms(700))).await.expect("made").task_id;
    wait_status(&tasks, &u, &id, TaskStatus::Completed).await;
    assert!((ms(699)..ms(2500)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A leg without a request but with a state comes again by itself.
#[tokio::test]
async fn a_leg_that_ends_with_a_state_alone_is_continued() {
    let t = Fixture::new("tasks_state").await;
    let tasks = tasks(&t.courier().await);
    let u = scope("u");
    let handler = |leg: Leg| async move {
        let so_far = leg.state.map_or_else(Vec::new, |state| state.to_vec());
        if leg.number < 3 {
            return LegOutcome::InputRequired(InputRequired::new().state([&so_far[..], b"."].concat()));
        }
        text(&String::from_utf8(so_far).expect("text"))
    };
    let worker = tasks.worker().backoff(ms(10)).start(handler).await.expect("started");
    let id = tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id;
    assert_eq!(text_of(&wait_status(&tasks, &u, &id, TaskStatus::Completed).await), "...");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A ring that nobody heard: the look finds the leg all the same.
#[tokio::test]
async fn a_leg_whose_signal_was_lost_is_found_by_looking() {
    let t = Fixture::new("tasks_lost_signal").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let u = scope("u");
    let worker = tasks.worker().start(|_: Leg| async { text("done") }).await.expect("started");
    wait_until("it is idle", ms(3000), || async {
        let idle: u64 = t.ask(&format!("ZCARD {}", t.key("idle:default", ""))).await;
        if idle == 1 { Ok(()) } else { Err(idle.to_string()) }
    })
    .await;
    // Nobody is known to be idle: the creation rings nobody.
    let _: u64 = t.ask(&format!("DEL {}", t.key("idle:default", ""))).await;
    let id = tasks.create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let begin = Instant::now();
    wait_status(&tasks, &u, &id, TaskStatus::Completed).await;
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// What a hundred thousand parked tasks cost beside their bytes: nothing. No worker, timer, task, connection or call.
#[tokio::test]
async fn parked_tasks_cost_no_worker_no_timer_no_connection_and_no_call() {
    let Some(server) = private_or_skip("parked", Options::default()).await else { return };
    let courier =
        Courier::builder().prefix("parked").connect(server.url()).await.expect("the server answers");
    let tasks = courier.tasks().ttl(Duration::from_secs(600));
    let u = scope("u");
    let handler = |leg: Leg| async move {
        if leg.number == 0 {
            return LegOutcome::InputRequired(
                InputRequired::new().request("q", &json!({"a": 1})).expect("JSON"),
            );
        }
        text("done")
    };
    let worker = tasks.worker().start(handler).await.expect("started");
    let model =
        tasks.create(NewTask::new(&u, r#"{"name":"confirm","arguments":{}}"#)).await.expect("made").task_id;
    wait_status(&tasks, &u, &model, TaskStatus::InputRequired).await;

    let mut raw = server.raw().await;
    async fn info(raw: &mut redis::aio::MultiplexedConnection, section: &str, field: &str) -> u64 {
        let text: String = redis::cmd("INFO").arg(section).query_async(raw).await.expect("INFO");
        let line = text.lines().find(|l| l.starts_with(field)).unwrap_or_else(|| panic!("no {field}"));
        let digits =
            line[field.len()..].chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit);
        digits.collect::<String>().parse().expect("a number")
    }
    // Calls of a quiet worker within its own second of looking, and what there is.
    let handle = tokio::runtime::Handle::current();
    let mut quiet = async || {
        let before = info(&mut raw, "commandstats", "cmdstat_evalsha:calls=").await;
        tokio::time::sleep(ms(2500)).await;
        let calls = info(&mut raw, "commandstats", "cmdstat_evalsha:calls=").await - before;
        (calls, info(&mut raw, "clients", "connected_clients").await, handle.metrics().num_alive_tasks())
    };
    let (calls, clients, alive) = quiet().await;

    // Copies of the parked one, as a program that reads the protocol could make them.
    let mut copying = server.raw().await;
    let before = info(&mut copying, "memory", "used_memory").await;
    let copies = "local all = redis.call('HGETALL', KEYS[1]) \
         for n = ARGV[1], ARGV[1] + 9999 do \
           local key = string.format('%s%031d', ARGV[2], n) \
           for i = 1, #all, 2 do redis.call('HSET', key, all[i], all[i + 1]) end \
           redis.call('PEXPIRE', key, 600000) \
         end";
    let (of, base) = (format!("parked:{{0}}:t:default:u:{model}"), "parked:{0}:t:default:u:c");
    for n in 0..10 {
        let mut copy = redis::cmd("EVAL");
        copy.arg(copies).arg(1).arg(&of).arg(n * 10_000).arg(base);
        let _: redis::Value = copy.query_async(&mut copying).await.expect("copied");
    }
    let bytes = (info(&mut copying, "memory", "used_memory").await - before) / 100_000;
    drop(copying);
    println!("a parked task: {bytes} bytes in Redis");
    assert!(bytes < 2_500, "{bytes}");

    let (more_calls, more_clients, more_alive) = quiet().await;
    assert!(more_calls <= calls + 4, "{calls} calls of a quiet worker, then {more_calls}");
    assert_eq!((clients, alive), (more_clients, more_alive));
    assert_eq!(worker.holding(), 0);
    // One of them goes on as if it were alone.
    let id = format!("c{:031}", 77_777);
    let begin = Instant::now();
    tasks.update(&u, &id, [("q.1".to_owned(), answer(json!(1)))]).await.expect("taken");
    wait_status(&tasks, &u, &id, TaskStatus::Completed).await;
    assert!(begin.elapsed() < ms(5000), "{:?}", begin.elapsed());
    worker.shutdown(ms(2000)).await;
}

/// The dropped handle gives its legs back as a shutdown does, and blocks nobody although a handler blocks.
#[tokio::test]
async fn a_worker_can_be_run_until_a_token_is_cancelled() {
    let t = Fixture::new("tasks_run").await;
    let courier = t.courier().await;
    let tasks = tasks(&courier);
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (tasks, cancel) = (tasks.clone(), cancel.clone());
        async move { tasks.worker().run(|_: Leg| async { text("done") }, cancel, ms(2000)).await }
    });
    let id = tasks.create(NewTask::new(&scope("u"), "x")).await.expect("made").task_id;
    wait_status(&tasks, &scope("u"), &id, TaskStatus::Completed).await;
    cancel.cancel();
    let end = running.await.expect("no panic").expect("it started");
    assert_eq!((end.interrupted, end.abandoned), (0, 0));
    t.finish().await;
}
