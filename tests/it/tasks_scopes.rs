//! Tasks: who finds what.

use std::time::{Duration, Instant};

use mcp_courier::Error;
use mcp_courier::tasks::{NewTask, Scope, TaskStatus};
use serde_json::json;

use crate::support::fixture::Fixture;
use crate::tasks::{answer, scope, tasks};

/// A task belongs to a caller and not to a connection: the identity is all that is asked for.
#[tokio::test]
async fn f40_a_caller_finds_its_task_from_a_new_process_and_another_caller_does_not() {
    let t = Fixture::new("f40").await;
    let before = t.courier().await;
    let id = tasks(&before).create(NewTask::new(&scope("u"), "x")).await.expect("made").task_id;
    before.shutdown(Duration::from_secs(1)).await;
    drop(before);
    let after = tasks(&t.courier().await);
    assert_eq!(after.get(&scope("u"), &id).await.expect("found").status, TaskStatus::Working);
    assert_eq!(after.get(&scope("v"), &id).await.expect_err("v's"), Error::TaskNotFound);
    after.update(&scope("u"), &id, [("k".to_owned(), answer(json!(1)))]).await.expect("acknowledged");
    after.cancel(&scope("u"), &id).await.expect("acknowledged");
    assert_eq!(after.get(&scope("u"), &id).await.expect("found").status, TaskStatus::Cancelled);
    t.finish().await;
}

#[tokio::test]
async fn f41_a_foreign_an_expired_and_an_unknown_task_cannot_be_told_apart() {
    let t = Fixture::new("f41").await;
    let tasks = tasks(&t.courier().await);
    let scopes: Vec<Scope> = ["u", "u:v", "U", "u\0", "u%3Av", "anonymous", " "]
        .iter()
        .map(|name| scope(name))
        .chain([Scope::anonymous()])
        .collect();
    let mut ids = Vec::new();
    for scope in &scopes {
        ids.push(tasks.create(NewTask::new(scope, "x")).await.expect("made").task_id);
    }
    let short = NewTask::new(&scopes[0], "x").ttl(Duration::from_millis(1));
    let expired = tasks.create(short).await.expect("made").task_id;
    t.wait_server_ms(t.server_ms().await + 5).await;

    let long = "x".repeat(10_000);
    let malformed = ["", " ", "\0", "a:b", "{0}", "*", "../x", "\u{1f980}", &long, "u:x"];
    for (at, scope) in scopes.iter().enumerate() {
        let foreign = ids.iter().enumerate().filter(|(of, _)| *of != at).map(|(_, id)| id.as_str());
        for id in foreign.chain([expired.as_str()]).chain(malformed) {
            let answers = || [("k".to_owned(), answer(json!(1)))];
            let errors = [
                tasks.get(scope, id).await.expect_err("not this one's"),
                tasks.update(scope, id, answers()).await.expect_err("not this one's"),
                tasks.cancel(scope, id).await.expect_err("not this one's"),
                tasks.watch(scope, id).await.expect_err("not this one's"),
            ];
            for error in errors {
                assert_eq!((error.to_string().as_str(), &error), ("task not found", &Error::TaskNotFound));
            }
        }
        // Nothing of all that was a write.
        let own = tasks.get(scope, &ids[at]).await.expect("its own");
        assert_eq!((own.status, own.revision, own.created_at), (TaskStatus::Working, 1, own.last_updated_at));
    }
    t.finish().await;
}

/// A foreign task is no other key than an unknown one: both are looked up in vain, in the same way.
#[tokio::test]
async fn f41_the_answer_takes_no_longer_for_a_foreign_task_than_for_an_unknown_one() {
    let t = Fixture::new("f41_time").await;
    let tasks = tasks(&t.courier().await);
    let id = tasks.create(NewTask::new(&scope("u"), "x".repeat(100_000))).await.expect("made").task_id;
    let (mut foreign, mut unknown) = (Vec::new(), Vec::new());
    for n in 0..500 {
        for (id, times) in [(id.clone(), &mut foreign), (format!("{n:032}"), &mut unknown)] {
            let begin = Instant::now();
            tasks.get(&scope("v"), &id).await.expect_err("not v's");
            times.push(begin.elapsed());
        }
    }
    foreign.sort();
    unknown.sort();
    let (foreign, unknown) = (foreign[250], unknown[250]);
    assert!(foreign.abs_diff(unknown) < Duration::from_millis(1), "{foreign:?} {unknown:?}");
    t.finish().await;
}
