//! A question that cannot be asked: the worker hears it at once.

use std::time::{Duration, Instant};

use mcp_courier::relay::{Answer, AnswerError, Ask, Content, Request, TaskRef};
use mcp_courier::{Courier, Error, Push, RequestId, SessionId};
use serde_json::json;

use super::{accepted, ann, ask, asking, form, outcome, rid};
use crate::support::fixture::{Fixture, push, session};
use crate::support::private::{Options, private_or_skip};

fn refused<T>(asked: mcp_courier::Result<T>) -> Error {
    asked.map(drop).expect_err("refused")
}

#[tokio::test]
async fn a_full_queue_refuses_the_question_and_nothing_is_left_of_it() {
    let t = Fixture::new("full").await;
    let courier = t.connect(t.builder().max_pending(2)).await;
    let s = session("s");
    for n in 0..2 {
        courier.push(push(&s, &n.to_string())).await.expect("queued");
    }
    let started = Instant::now();
    let e = refused(courier.relay().ask(ask(&s, "q")).await);
    assert!(matches!(e, Error::QueueFull { pending: 2, limit: 2, .. }), "{e:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
    let keys: Vec<String> = t.keys().await.into_iter().map(|(key, _)| key).collect();
    assert!(!keys.iter().any(|key| key.starts_with("e:") || key.starts_with("eo:")), "{keys:?}");
    t.finish().await;
}

/// The limit holds for open questions as well: their announcements leave the queue long before their answers come.
#[tokio::test]
async fn open_questions_are_limited_like_pending_messages() {
    let t = Fixture::new("open_limit").await;
    let courier = t.connect(t.builder().max_pending(3)).await;
    let s = session("s");
    let sink = courier.relay().attach(crate::support::fixture::Recorder::new(), super::Client::silent());
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    for n in 0..3 {
        let _asked = courier.relay().start(ask(&s, &format!("q{n}"))).await.expect("asked");
        crate::support::fixture::wait_pending(&courier, &s, 0).await;
    }
    let e = refused(courier.relay().start(ask(&s, "q3")).await);
    assert!(matches!(e, Error::QueueFull { limit: 3, .. }), "{e:?}");
    courier.relay().answer(&s, &rid("q0"), None, ann()).await.expect("stored");
    let _asked = courier.relay().start(ask(&s, "q3")).await.expect("there is room again");
    courier.shutdown(Duration::from_secs(5)).await;
    t.finish().await;
}

/// A full server refuses a question whole; the answer to one that was asked before still gets through.
#[tokio::test]
async fn a_full_server_refuses_the_question_and_still_takes_answers() {
    let Some(server) = private_or_skip("oom", Options::default()).await else { return };
    let courier = Courier::connect(server.url()).await.expect("connected");
    let (s, mut raw) = (session("s"), server.raw().await);
    let waiting = asking(&courier, ask(&s, "before")).await;
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec_async(&mut raw).await.expect("set");
    let e = refused(courier.relay().ask(ask(&s, "q")).await);
    assert!(matches!(&e, Error::Refused { code, .. } if code == "OOM"), "{e:?}");
    courier.relay().answer(&s, &rid("before"), None, ann()).await.expect("an answer frees a worker");
    assert_eq!(accepted(&outcome(waiting).await), json!({"name": "Ann"}));
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec_async(&mut raw).await.expect("set");
    let left: Vec<String> =
        redis::cmd("KEYS").arg("courier:{0}:e:*").query_async(&mut raw).await.expect("keys");
    assert_eq!(left, ["courier:{0}:e:s:before"]);
}

/// A foreign key in the way of any part: an error by name, and nothing of the question is there.
#[tokio::test]
async fn a_foreign_key_in_the_way_refuses_the_question_whole() {
    let t = Fixture::new("foreign").await;
    let courier = t.courier().await;
    for (kind, sid) in [("q", "a"), ("eo", "b"), ("e", "c:q")] {
        let _: () = t.ask(&format!("SET {} x PX 60000", t.key(kind, sid))).await;
        let s = session(&sid[..1]);
        let e = refused(courier.relay().start(ask(&s, "q")).await);
        assert!(matches!(&e, Error::Refused { code, .. } if code == "WRONGTYPE"), "{kind}: {e:?}");
        let keys: Vec<String> = t.keys().await.into_iter().map(|(key, _)| key).collect();
        let ours = keys.iter().filter(|key| key.contains(&format!(":{}", &sid[..1]))).count();
        assert_eq!(ours, 1, "{kind}: {keys:?}");
    }
    // The index of waiting sessions is looked at last: what was written before it is taken back.
    let t2 = Fixture::new("foreign_w").await;
    let courier = t2.courier().await;
    let _: () = t2.ask(&format!("SET {} x PX 60000", t2.key("w", ""))).await;
    let e = refused(courier.relay().start(ask(&session("s"), "q")).await);
    assert!(matches!(&e, Error::Refused { code, .. } if code == "WRONGTYPE"), "{e:?}");
    let keys: Vec<String> = t2.keys().await.into_iter().map(|(key, _)| key).collect();
    assert!(!keys.iter().any(|key| key.contains(":s")), "{keys:?}");
    for t in [t, t2] {
        t.finish().await;
    }
}

#[tokio::test]
async fn what_breaks_a_limit_is_refused_before_anything_is_sent() {
    let t = Fixture::new("limits").await;
    let courier = t.connect(t.builder().max_body_bytes(2000)).await;
    let (s, relay) = (session("s"), courier.relay());
    let long = "x".repeat(3000);
    for (what, question) in [
        ("request", Ask::new(&s, form(&long))),
        ("task id", ask(&s, "q").task(TaskRef::new("x".repeat(1025)))),
        ("task id", ask(&s, "q").task(TaskRef::new(""))),
        ("task scope", ask(&s, "q").task(TaskRef::new("t").scope("x".repeat(1025)))),
        ("timeout", ask(&s, "q").timeout(Duration::ZERO)),
        ("keep", ask(&s, "q").keep(Duration::ZERO)),
        ("grace", ask(&s, "q").grace(Duration::MAX)),
    ] {
        let e = refused(relay.start(question).await);
        assert!(
            matches!(e, Error::Invalid { what: w, .. } | Error::TooLarge { what: w, .. } if w == what),
            "{what}: {e:?}"
        );
    }
    assert!(RequestId::new("").is_err() && RequestId::new("x".repeat(201)).is_err());
    assert!(Content::from_json("{").is_err());
    assert_eq!(t.keys().await, []);
    let waiting = asking(&courier, Ask::new(&s, Request::roots()).id(rid("q"))).await;
    let answered = relay.answer(&s, &rid("q"), None, Answer::accept(json!({"roots": long}))).await;
    assert!(
        matches!(answered, Err(AnswerError::Store(Error::TooLarge { what: "content", .. }))),
        "{answered:?}"
    );
    relay.answer(&s, &rid("q"), None, Answer::accept(json!({"roots": []}))).await.expect("stored");
    assert_eq!(accepted(&outcome(waiting).await), json!({"roots": []}));
    t.finish().await;
}

/// Ids of any bytes: no two questions meet.
#[tokio::test]
async fn hostile_ids_stay_apart() {
    let t = Fixture::new("hostile").await;
    let courier = t.courier().await;
    let names = ["a", "a b", "a:b", "{a}", "\n", "%61", "\u{1f980}", "*", "@question a"];
    let mut waiting = Vec::new();
    for sid in names {
        for id in names {
            let (s, id) = (SessionId::new(sid).expect("valid"), rid(id));
            let question = Ask::new(&s, form("?")).id(id.clone()).timeout(Duration::from_secs(30));
            waiting.push((s, id, asking(&courier, question).await));
        }
    }
    for (s, id, _) in &waiting {
        let name = format!("{s:?} and {id:?}");
        let answer = Answer::accept(json!({"name": name}));
        courier.relay().answer(s, id, None, answer).await.expect("stored");
    }
    for (s, id, one) in waiting {
        assert_eq!(accepted(&outcome(one).await), json!({"name": format!("{s:?} and {id:?}")}));
    }
    courier.push(Push::new(&session("a"), "x")).await.expect("queued");
    t.finish().await;
}
