//! Tasks: the network, the server and the workers misbehave.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mcp_courier::tasks::{InputRequired, Leg, LegOutcome, NewTask, TaskCancel, TaskStatus};
use mcp_courier::{CancellationToken, Courier, Error};
use serde_json::json;

use crate::support::capture::Capture;
use crate::support::fixture::{Fixture, Process};
use crate::support::private::{Options, private_or_skip};
use crate::support::proxy::{Mode, Proxy};
use crate::support::wait::wait_until;
use crate::tasks::{answer, gated, key, ms, scope, tasks, text, text_of, wait_count, wait_status};

/// Until something was logged so often.
async fn wait_logged(capture: &Capture, what: &str, times: usize) {
    wait_until(what, Duration::from_secs(20), || async {
        match capture.lines_with(&[what]).len() {
            n if n >= times => Ok(()),
            n => Err(format!("{n} times: {}", capture.text())),
        }
    })
    .await;
}

/// Every signal to workers is lost: what it would have said comes with the renewal of the lease.
#[tokio::test]
async fn answers_and_cancelling_reach_a_worker_that_hears_no_signal() {
    let t = Fixture::plain("tasks_deaf").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (near, far) = (t.courier().await, t.connect_to(proxy.url()).await);
    proxy.drop_frames_with(Some(b"@work"));
    let u = scope("u");
    let handler = |leg: Leg| async move {
        match leg.task.request_input("q", &json!({})).await {
            Ok(answer) => text(answer.get()),
            Err(exit) => exit.into(),
        }
    };
    let worker = tasks(&far).worker().lease(ms(900)).start(handler).await.expect("started");
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(tasks(&near).create(NewTask::new(&u, "x")).await.expect("made").task_id);
    }
    for id in &ids {
        wait_status(&tasks(&near), &u, id, TaskStatus::InputRequired).await;
    }
    let begin = Instant::now();
    tasks(&near).update(&u, &ids[0], [("q".to_owned(), answer(json!(1)))]).await.expect("taken");
    tasks(&near).cancel(&u, &ids[1]).await.expect("asked");
    wait_status(&tasks(&near), &u, &ids[0], TaskStatus::Completed).await;
    wait_status(&tasks(&near), &u, &ids[1], TaskStatus::Cancelled).await;
    assert!(begin.elapsed() < ms(2500), "{:?}", begin.elapsed());
    assert!(proxy.dropped() > 0);
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// The take was done, its answer lost: the worker asks again, and is given its own leg, in the same attempt.
#[tokio::test]
async fn a_leg_whose_taking_was_not_answered_is_given_again_and_counts_once() {
    let t = Fixture::plain("tasks_lost_take").await;
    let courier = t.courier().await;
    let u = scope("u");
    let handler = |leg: Leg| async move { text(&leg.attempt.to_string()) };
    let worker = tasks(&courier).worker().max_attempts(1).start(handler).await.expect("started");
    let idle = wait_until("it is idle", ms(3000), || async {
        let idle: Vec<String> = t.ask(&format!("ZRANGE {} 0 0", t.key("idle:default", ""))).await;
        idle.into_iter().next().ok_or_else(|| "nobody".to_owned())
    })
    .await;
    let made =
        tasks(&courier).create(NewTask::new(&u, "x").delay(Duration::from_secs(20))).await.expect("made");
    let (id, until) = (made.task_id, t.server_ms().await + 120_000);
    // As the script leaves it, for a time that nobody waits for.
    let key = t.key(&crate::tasks::key("u", &id), "");
    let _: u64 = t.ask(&format!("HSET {key} lease {idle}:1 takes 1 attempts 1 due {until}")).await;
    let _: u64 = t.ask(&format!("ZADD {} {until} default:u:{id}", t.key("legs:default", ""))).await;
    let (node, serial) = idle.split_once(':').expect("node and worker");
    let mut ring = redis::cmd("PUBLISH");
    ring.arg(t.key("c", node)).arg(format!("@work:{serial} new default:u:{id}"));
    let heard: u64 = t.send(&ring).await;
    assert_eq!(heard, 1);
    let done = wait_status(&tasks(&courier), &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "1");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// The worker is cut off while its handler works: what it brings is stored when the network is back.
#[tokio::test]
async fn a_result_that_cannot_be_stored_waits_for_the_server() {
    let t = Fixture::plain("tasks_cut_end").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (near, far) = (t.courier().await, t.connect_to(proxy.url()).await);
    let u = scope("u");
    let (gate, started) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let handler = gated(&gate, &started, |leg| leg.attempt.to_string());
    let worker = tasks(&far).worker().lease(Duration::from_secs(60)).start(handler).await.expect("started");
    let id = tasks(&near).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_count("it runs", &started, 1).await;
    let capture = Capture::start();
    proxy.set(Mode::Refuse);
    gate.cancel();
    wait_logged(&capture, "the end of a leg is not stored", 2).await;
    assert_eq!(tasks(&near).get(&u, &id).await.expect("found").status, TaskStatus::Working);
    assert_eq!(worker.holding(), 1);
    proxy.set(Mode::Pass);
    let done = wait_status(&tasks(&near), &u, &id, TaskStatus::Completed).await;
    assert_eq!(text_of(&done), "1");
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

/// A watch whose signals are lost with its connection shows the newest state after the reconnect.
#[tokio::test]
async fn a_watch_sees_what_changed_while_its_connection_was_away() {
    let t = Fixture::plain("tasks_watch_cut").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (near, far) = (t.courier().await, t.connect_to(proxy.url()).await);
    let u = scope("u");
    let id = tasks(&near).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let mut watch = tasks(&far).watch(&u, &id).await.expect("found");
    watch.next().await.expect("reached").expect("now");
    proxy.set(Mode::Refuse);
    assert_eq!(tasks(&near).cancel(&u, &id).await.expect("done"), TaskCancel::Cancelled);
    proxy.set(Mode::Pass);
    let next = tokio::time::timeout(Duration::from_secs(8), watch.next()).await.expect("in time");
    assert_eq!(next.expect("reached").expect("a change").status, TaskStatus::Cancelled);
    t.finish().await;
}

/// A full server takes no new task and no result, but cancelling and leases go on; nothing is half done.
#[tokio::test]
async fn a_full_server_refuses_new_tasks_and_lets_old_ones_end() {
    let options = Options { extra: &["--maxmemory-policy", "noeviction"], ..Options::default() };
    let Some(server) = private_or_skip("tasks_oom", options).await else { return };
    let courier =
        Courier::builder().prefix("oom").deadline(ms(1000)).connect(server.url()).await.expect("it answers");
    let (mut raw, looking) = (server.raw().await, server.raw().await);
    let mut limit = async |bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        let _: String = set.query_async(&mut raw).await.expect("set");
    };
    let u = scope("u");
    let (gate, started) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let handler = gated(&gate, &started, |_| "done".into());
    let builder = tasks(&courier).worker().concurrency(1).lease(ms(600));
    let worker = builder.start(handler).await.expect("started");
    let runs = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_count("it runs", &started, 1).await;
    let queued = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    limit("1").await;
    let full = tasks(&courier).create(NewTask::new(&u, "x")).await.expect_err("refused");
    assert!(matches!(&full, Error::Refused { code, .. } if code == "OOM"), "{full}");
    assert_eq!(tasks(&courier).cancel(&u, &queued).await.expect("done"), TaskCancel::Cancelled);
    let capture = Capture::start();
    gate.cancel();
    wait_logged(&capture, "the end of a leg is not stored", 2).await;
    // The lease that it had is over, and was renewed all the while.
    let due = async || -> u64 {
        let mut get = redis::cmd("HGET");
        get.arg(format!("oom:{{0}}:{}", key("u", &runs))).arg("due");
        get.query_async(&mut looking.clone()).await.expect("it runs")
    };
    let taken = due().await;
    wait_until("a second lease's worth of renewals", Duration::from_secs(10), async || {
        let now = due().await;
        if now > taken + 1200 { Ok(()) } else { Err(format!("{} ms", now - taken)) }
    })
    .await;
    assert_eq!(tasks(&courier).get(&u, &runs).await.expect("found").status, TaskStatus::Working);
    limit("0").await;
    wait_status(&tasks(&courier), &u, &runs, TaskStatus::Completed).await;
    assert_eq!(started.load(Ordering::SeqCst), 1);
    worker.shutdown(ms(2000)).await;
}

/// Killed and started again with its data: what was parked is parked, what ran ends.
#[tokio::test]
async fn tasks_survive_a_restart_of_the_server() {
    let options = Options { appendonly: true, ..Options::default() };
    let Some(server) = private_or_skip("tasks_restart", options).await else { return };
    let courier = Courier::builder().prefix("restart").connect(server.url()).await.expect("it answers");
    let u = scope("u");
    let handler = |leg: Leg| async move {
        match leg.answers.get("q") {
            Some(answer) => text(answer.get()),
            None => LegOutcome::InputRequired(InputRequired::new().request("q", &json!({})).expect("JSON")),
        }
    };
    let worker = tasks(&courier).worker().start(handler).await.expect("started");
    let id = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    wait_status(&tasks(&courier), &u, &id, TaskStatus::InputRequired).await;
    server.sigkill().await;
    server.start_again().await;
    wait_until("it is taken", Duration::from_secs(15), || async {
        let done = tasks(&courier).update(&u, &id, [("q".to_owned() + ".1", answer(json!(1)))]).await;
        done.map_err(|e| e.to_string())
    })
    .await;
    assert_eq!(text_of(&wait_status(&tasks(&courier), &u, &id, TaskStatus::Completed).await), "1");
    worker.shutdown(ms(2000)).await;
}

/// What the legs of all workers did: how often each leg of each task ran.
type Effects = Arc<Mutex<HashMap<(String, u64), usize>>>;

fn chaotic(effects: &Effects) -> impl mcp_courier::tasks::TaskHandler + Clone {
    let effects = effects.clone();
    move |leg: Leg| {
        let effects = effects.clone();
        async move {
            *effects.lock().expect("not poisoned").entry((leg.id.to_string(), leg.number)).or_default() += 1;
            tokio::time::sleep(ms(fastrand::u64(0..60))).await;
            match &leg.call[..] {
                b"asks" if leg.number < 2 => {
                    let asked = InputRequired::new().state("so far").request("q", &json!({})).expect("JSON");
                    LegOutcome::InputRequired(asked)
                }
                b"asks" => text(leg.answers["q"].get()),
                b"waits" => match leg.task.request_input("q", &json!({})).await {
                    Ok(answer) => text(answer.get()),
                    Err(exit) => exit.into(),
                },
                b"fails" => LegOutcome::error(-32000, "as told"),
                b"retries" if leg.attempt == 1 => LegOutcome::retry("the first time"),
                _ => text("1"),
            }
        }
    }
}

/// Tasks of every kind, workers killed at random in the middle of them: each reaches its right end, once, and none is
/// stuck.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tasks_reach_their_ends_while_workers_are_killed() {
    const KINDS: [&str; 5] = ["sleeps", "asks", "waits", "fails", "retries"];
    const CONCURRENCY: usize = 6;
    let t = Fixture::new("tasks_chaos").await;
    let replicas = [t.courier().await, t.courier().await, t.courier().await];
    let effects = Effects::default();
    let over = CancellationToken::new();
    let kills = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (builder, url) = (t.builder(), t.server.url().to_owned());
        let (handler, over, kills) = (chaotic(&effects), over.clone(), kills.clone());
        workers.spawn(async move {
            loop {
                let process = Process::start(builder.clone(), &url).await;
                let starting = tasks(&process.courier).worker().concurrency(CONCURRENCY).max_attempts(100);
                let starting = starting.lease(ms(500)).backoff(ms(20)).start(handler.clone());
                let worker = process.runtime.spawn(starting).await.expect("no panic").expect("started");
                tokio::select! {
                    () = tokio::time::sleep(ms(fastrand::u64(100..900))) => {}
                    () = over.cancelled() => {
                        worker.shutdown(ms(2000)).await;
                        return process.crash().await;
                    }
                }
                // Killed: nothing is given back.
                std::mem::forget(worker);
                process.crash().await;
                kills.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..200 {
        let all = replicas.clone();
        clients.spawn(async move {
            let (u, kind) = (scope(&format!("caller {}", n % 7)), KINDS[n % KINDS.len()]);
            let made = tasks(&all[n % 3]).create(NewTask::new(&u, kind)).await.expect("made");
            let id = made.task_id;
            let begin = Instant::now();
            let end = loop {
                let tasks = tasks(&all[fastrand::usize(..3)]);
                let task = tasks.get(&u, &id).await.expect("found");
                assert_eq!(task.created_at, made.created_at);
                for key in task.input_requests.iter().flat_map(|all| all.keys()) {
                    tasks.update(&u, &id, [(key.clone(), answer(json!(1)))]).await.expect("taken");
                }
                if task.status.is_terminal() {
                    break task;
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "stuck: {kind} {task:?}");
                tokio::time::sleep(ms(25)).await;
            };
            match kind {
                "fails" => assert_eq!(crate::tasks::error_of(&end), (-32000, "as told".into())),
                _ => assert_eq!((text_of(&end).as_str(), kind), ("1", kind)),
            }
            (u, id, end.revision, kind)
        });
    }
    let ends = clients.join_all().await;
    over.cancel();
    workers.join_all().await;
    let (effects, kills) = (effects.lock().expect("not poisoned").clone(), kills.load(Ordering::SeqCst));
    let mut more = 0;
    for (u, id, revision, kind) in ends {
        let later = tasks(&replicas[0]).get(&u, &id).await.expect("found");
        assert_eq!(later.revision, revision, "the end is the end");
        let legs = if kind == "asks" { 3 } else { 1 };
        for leg in 0..legs {
            let ran = effects.get(&(id.clone(), leg)).copied().unwrap_or_default();
            let expected = 1 + usize::from(kind == "retries");
            assert!(ran >= 1, "leg {leg} of a task that {kind} never ran");
            more += ran.saturating_sub(expected);
        }
    }
    println!("{kills} kills, {more} legs ran again");
    assert!(kills >= 4, "{kills}");
    // A killed worker has its places full, and legs that wait in place beside them.
    assert!(more <= kills * (CONCURRENCY + 40), "{kills} kills, {more} legs ran again");
    let left: u64 = t.ask(&format!("ZCARD {}", t.key("legs:default", ""))).await;
    assert_eq!(left, 0);
    t.finish().await;
}
