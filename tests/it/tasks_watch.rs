//! Tasks: those who follow them.

use std::time::Duration;

use mcp_courier::CancellationToken;
use mcp_courier::tasks::{InputRequired, Leg, LegOutcome, NewTask, TaskStatus};
use serde_json::json;

use crate::support::fixture::{Fixture, Recorder, session};
use crate::tasks::{answer, ms, scope, tasks, text, wait_status};

fn asks_once() -> impl mcp_courier::tasks::TaskHandler + Clone {
    |leg: Leg| async move {
        if leg.number == 0 {
            return LegOutcome::InputRequired(InputRequired::new().request("q", &json!({})).expect("JSON"));
        }
        text("done")
    }
}

#[tokio::test]
async fn a_watch_on_another_replica_shows_each_state_as_get_does_and_ends_with_the_last() {
    let t = Fixture::new("tasks_watch").await;
    let (one, other) = (t.courier().await, t.courier().await);
    let u = scope("u");
    let id = tasks(&one).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let mut watches = [
        tasks(&other).watch(&u, &id).await.expect("found"),
        tasks(&other).watch(&u, &id).await.expect("found"),
        tasks(&one).watch(&u, &id).await.expect("found"),
    ];
    for watch in &mut watches {
        assert_eq!(watch.next().await.expect("reached").expect("now").status, TaskStatus::Working);
    }
    let worker = tasks(&one).worker().start(asks_once()).await.expect("started");
    for watch in &mut watches {
        // By the signal, well before the watch is renewed.
        let next = tokio::time::timeout(ms(3000), watch.next()).await.expect("heard");
        let task = next.expect("reached").expect("a change");
        assert_eq!(task.status, TaskStatus::InputRequired);
        let got = tasks(&other).get(&u, &id).await.expect("found");
        assert_eq!(serde_json::to_string(&task).expect("JSON"), serde_json::to_string(&got).expect("JSON"));
    }
    tasks(&one).update(&u, &id, [("q.1".to_owned(), answer(json!(1)))]).await.expect("taken");
    for watch in &mut watches {
        loop {
            let next = tokio::time::timeout(ms(3000), watch.next()).await.expect("heard").expect("reached");
            let task = next.expect("not before the end");
            if task.status == TaskStatus::Completed {
                break;
            }
            assert_eq!(task.status, TaskStatus::Working);
        }
        assert!(watch.next().await.expect("reached").is_none(), "nothing follows the end");
    }
    worker.shutdown(ms(2000)).await;
    t.finish().await;
}

#[tokio::test]
async fn a_watch_ends_when_its_task_expires() {
    let t = Fixture::new("tasks_watch_end").await;
    let courier = t.courier().await;
    let u = scope("u");
    let id = tasks(&courier).create(NewTask::new(&u, "x").ttl(ms(1200))).await.expect("made").task_id;
    let mut watch = tasks(&courier).watch(&u, &id).await.expect("found");
    assert!(watch.next().await.expect("reached").is_some());
    let end = tokio::time::timeout(ms(3000), watch.next()).await.expect("it ends").expect("reached");
    assert!(end.is_none());
    t.finish().await;
}

#[tokio::test]
async fn the_session_of_a_task_is_told_of_its_states_through_its_queue() {
    let t = Fixture::new("tasks_notify").await;
    let (server, worker_process) = (t.courier().await, t.courier().await);
    let (u, s) = (scope("u"), session("client"));
    let sink = Recorder::new();
    server.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    let worker = tasks(&worker_process).worker().start(asks_once()).await.expect("started");
    let id = tasks(&server).create(NewTask::new(&u, "x").notify(&s)).await.expect("made").task_id;
    wait_status(&tasks(&server), &u, &id, TaskStatus::InputRequired).await;
    sink.wait_for(1).await;
    tasks(&server).update(&u, &id, [("q.1".to_owned(), answer(json!(1)))]).await.expect("taken");
    let last = crate::support::wait::wait_until("the last state", Duration::from_secs(10), || async {
        let seen = sink.seen();
        let last = seen.last().expect("some").notification().expect("a notification");
        let params = last.params.clone().expect("params");
        if params["status"] == "completed" { Ok(last) } else { Err(format!("{params:?}")) }
    })
    .await;
    assert_eq!(last.method, "notifications/tasks");
    let got = tasks(&server).get(&u, &id).await.expect("found");
    assert_eq!(
        serde_json::to_value(&last.params).expect("JSON"),
        serde_json::from_str::<serde_json::Value>(&serde_json::to_string(&got).expect("JSON")).expect("JSON")
    );
    worker.shutdown(ms(2000)).await;
    server.shutdown(Duration::from_secs(2)).await;
    t.finish().await;
}

/// Listens to a task that nobody touches: no call but the one that renews.
#[tokio::test]
async fn dropped_watches_leave_nothing() {
    let t = Fixture::new("tasks_watch_drop").await;
    let courier = t.courier().await;
    let u = scope("u");
    let id = tasks(&courier).create(NewTask::new(&u, "x")).await.expect("made").task_id;
    let done = CancellationToken::new();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (tasks, u, id, done) = (tasks(&courier), u.clone(), id.clone(), done.clone());
        all.spawn(async move {
            let mut watch = tasks.watch(&u, &id).await.expect("found");
            watch.next().await.expect("reached").expect("now");
            tokio::select! {
                next = watch.next() => panic!("{next:?}"),
                () = done.cancelled() => {}
            }
        });
    }
    tokio::task::yield_now().await;
    done.cancel();
    all.join_all().await;
    let watchers: String = t.ask(&format!("HGET {} watch", t.key(&crate::tasks::key("u", &id), ""))).await;
    assert_eq!(watchers.split(' ').count(), 1, "a node, however many in it: {watchers}");
    t.finish().await;
}
