//! One message to many: topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mcp_courier::{
    Courier, Delivery, Notification, Publish, Push, SinkError, Topic, TopicDelivery, TopicEvent, TopicStream,
};

use crate::support::fixture::{Fixture, Process, Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};
use crate::support::proxy::Proxy;
use crate::support::wait::wait_until;

const LONG: Duration = Duration::from_secs(10);

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a valid topic")
}

/// The next message of a stream, as text.
async fn heard(stream: &mut TopicStream) -> String {
    match tokio::time::timeout(LONG, stream.recv()).await.expect("in time") {
        Some(TopicEvent::Message(message)) => String::from_utf8_lossy(message.body()).into_owned(),
        other => panic!("{other:?}"),
    }
}

async fn serve(courier: &Courier, id: &str, topics: &[Topic]) -> Recorder {
    let (s, sink) = (session(id), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    courier.topics().subscribe(&s, topics.to_vec()).await.expect("subscribed");
    sink
}

/// Both ways reach every session that takes part and every stream that listens, on every replica, and nobody else.
#[tokio::test]
async fn a_message_reaches_every_session_and_stream_of_its_topic_on_every_replica() {
    let t = Fixture::new("everywhere").await;
    let replicas = [t.courier().await, t.courier().await, t.courier().await];
    let news = topic("news {of} the day");
    let (mut sinks, mut streams) = (Vec::new(), Vec::new());
    for (n, replica) in replicas.iter().enumerate() {
        sinks.push(serve(replica, &format!("s{n}"), &[news.clone(), Topic::tools()]).await);
        streams.push(replica.topics().listen([news.clone()]).await.expect("listening"));
    }
    let stranger = serve(&replicas[0], "stranger", &[topic("news")]).await;

    let worker = t.courier().await;
    let durable = worker.topics().send(Publish::new(&news, "durable")).await.expect("published");
    assert_eq!((durable.sessions, durable.refused, durable.nodes), (3, 0, 3));
    let hint = Publish::new(&news, "hint").delivery(TopicDelivery::Hint);
    let hint = worker.topics().send(hint).await.expect("published");
    assert_eq!((hint.sessions, hint.nodes), (0, 3));

    for sink in &sinks {
        let mut bodies = sink.wait_for(2).await;
        bodies.sort();
        assert_eq!(bodies, ["durable", "hint"]);
    }
    for stream in &mut streams {
        assert_eq!([heard(stream).await, heard(stream).await], ["durable", "hint"]);
    }
    assert_eq!(stranger.bodies(), [""; 0]);
    for replica in &replicas {
        replica.shutdown(LONG).await;
    }
    t.finish().await;
}

/// A durable message waits in the queue of a session that nobody serves, in order with its other messages.
#[tokio::test]
async fn a_durable_message_waits_in_order_for_a_session_that_is_served_nowhere() {
    let t = Fixture::new("waits").await;
    let courier = t.courier().await;
    let s = session("s");
    courier.topics().subscribe(&s, [Topic::tools()]).await.expect("subscribed");
    courier.push(push(&s, "before")).await.expect("queued");
    courier.topics().send(Publish::new(&Topic::tools(), "changed")).await.expect("published");
    courier.push(push(&s, "after")).await.expect("queued");
    let sink = Recorder::new();
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    assert_eq!(sink.wait_for(3).await, ["before", "changed", "after"]);
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// Published again with its id, a message reaches only those that have not got it.
#[tokio::test]
async fn a_publish_that_is_repeated_with_its_id_arrives_once() {
    let t = Fixture::new("again").await;
    let courier = t.courier().await;
    let sinks = [serve(&courier, "a", &[topic("x")]).await, serve(&courier, "b", &[topic("x")]).await];
    let id = mcp_courier::MessageId::new("deploy-7").expect("valid");
    for _ in 0..3 {
        let publish = Publish::new(&topic("x"), "once").id(id.clone());
        assert_eq!(courier.topics().send(publish).await.expect("published").sessions, 2);
    }
    courier.topics().send(Publish::new(&topic("x"), "end")).await.expect("published");
    for sink in &sinks {
        assert_eq!(sink.wait_for(2).await, ["once", "end"]);
    }
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// A burst of one kind arrives as few, the newest among them, whichever way it travels; another resource is another kind.
#[tokio::test]
async fn a_burst_of_a_hundred_arrives_as_few_and_the_newest_is_among_them() {
    for delivery in [TopicDelivery::Durable, TopicDelivery::Hint] {
        let t = Fixture::new("burst").await;
        let (worker, server) = (t.courier().await, t.courier().await);
        let (a, b) = (topic("a"), topic("b"));
        let sink = serve(&server, "s", &[a.clone(), b.clone()]).await;
        let mut stream = server.topics().listen([a.clone(), b.clone()]).await.expect("listening");
        let updated = |uri: &str, n: usize| Notification::resource_updated(uri).meta("n", n);
        let publishes = (0..100).map(|n| {
            let (topics, a, n) = (worker.topics(), a.clone(), updated("file:///a", n));
            tokio::spawn(async move { topics.publish(&a, &n, delivery).await })
        });
        for published in futures_util::future::join_all(publishes).await {
            published.expect("no panic").expect("published");
        }
        worker.topics().publish(&b, &updated("file:///b", 100), delivery).await.expect("published");

        let newest = |d: &Delivery, uri: &str, n: usize| d.notification() == Ok(updated(uri, n));
        wait_until("the newest of both", LONG, || async {
            let seen = sink.seen();
            let both = seen.iter().any(|d| newest(d, "file:///a", 99))
                && seen.iter().any(|d| newest(d, "file:///b", 100));
            if both { Ok(()) } else { Err(format!("{:?}", sink.bodies())) }
        })
        .await;
        assert!(sink.seen().len() <= 6, "{delivery:?}: {} of 101 arrived", sink.seen().len());
        let mut of_the_stream = 0;
        while !heard(&mut stream).await.contains(r#""n":100"#) {
            of_the_stream += 1;
        }
        assert!(of_the_stream <= 5, "{delivery:?}: {of_the_stream}");
        server.shutdown(LONG).await;
        t.finish().await;
    }
}

/// A thousand sessions on three replicas hear of a change that was published once; a hint does so without a key, a push or
/// a call for each.
#[tokio::test]
async fn a_list_changed_reaches_a_thousand_sessions_on_three_replicas() {
    let t = Fixture::new("thousand").await;
    let replicas = [t.courier().await, t.courier().await, t.courier().await];
    let heard: [Arc<AtomicUsize>; 3] = Default::default();
    let tools = Topic::tools();
    for (n, (replica, heard)) in replicas.iter().zip(&heard).cycle().take(999).enumerate() {
        let (s, heard) = (session(&format!("s{n}")), heard.clone());
        let sink = move |_: Delivery| {
            heard.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        };
        replica.subscribers().ensure_running(&s, sink).await.expect("claimed");
        replica.topics().subscribe(&s, [tools.clone()]).await.expect("subscribed");
    }
    let worker = t.courier().await;
    let all = |times: usize| {
        let heard = &heard;
        move || async move {
            let counts: Vec<_> = heard.iter().map(|h| h.load(Ordering::Relaxed)).collect();
            if counts == [333 * times; 3] { Ok(()) } else { Err(format!("{counts:?}")) }
        }
    };
    let changed = Notification::tools_list_changed();
    let hint = worker.topics().publish(&tools, &changed, TopicDelivery::Hint).await.expect("published");
    assert_eq!((hint.sessions, hint.nodes), (0, 3));
    wait_until("999 hints", LONG, all(1)).await;
    assert_eq!((worker.metrics().pushed, replicas[0].metrics().acked), (0, 0), "no queue had it");

    let durable = worker.topics().publish(&tools, &changed, TopicDelivery::Durable).await.expect("published");
    assert_eq!((durable.sessions, durable.refused), (999, 0));
    wait_until("999 messages", LONG, all(2)).await;
    for replica in &replicas {
        replica.shutdown(LONG).await;
    }
    t.finish().await;
}

/// A sink gets one message at a time, hints between those of its queue; a hint it does not take is no failed attempt, and
/// one that finds it closed ends the subscription.
#[tokio::test]
async fn hints_come_between_messages_and_never_beside_them() {
    let t = Fixture::new("between").await;
    let courier = t.courier().await;
    let s = session("s");
    let inside = Arc::new(AtomicUsize::new(0));
    let recorder = Recorder::new();
    let sink = {
        let (inside, recorder) = (inside.clone(), recorder.clone());
        move |delivery: Delivery| {
            let (inside, recorder) = (inside.clone(), recorder.clone());
            async move {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let verdict = match delivery.body() {
                    b"bad" => Err(SinkError::retry("no")),
                    b"close" => Err(SinkError::Closed),
                    _ => Ok(()),
                };
                mcp_courier::NotificationSink::deliver(&recorder, delivery).await?;
                verdict
            }
        }
    };
    courier.subscribers().ensure_running(&s, sink).await.expect("claimed");
    courier.topics().subscribe(&s, [topic("x")]).await.expect("subscribed");
    let hint = |body: &str| Publish::new(&topic("x"), body).delivery(TopicDelivery::Hint);
    for n in 0..100 {
        courier.push(push(&s, &format!("q{n}"))).await.expect("queued");
        courier.topics().send(hint(&format!("h{n}"))).await.expect("published");
    }
    courier.topics().send(hint("bad")).await.expect("published");
    let bodies = recorder.wait_for(201).await;
    for kind in ["q", "h"] {
        let of: Vec<_> = bodies.iter().filter(|b| b.starts_with(kind)).cloned().collect();
        assert_eq!(of, (0..100).map(|n| format!("{kind}{n}")).collect::<Vec<_>>(), "in order");
    }
    courier.topics().send(hint("close")).await.expect("published");
    wait_until("the end", LONG, || async {
        if courier.subscribers().count() == 0 { Ok(()) } else { Err("still served".into()) }
    })
    .await;
    let metrics = courier.metrics();
    assert_eq!((metrics.hints, metrics.hints_dropped, metrics.requeued, metrics.acked), (100, 1, 0, 100));
    t.finish().await;
}

/// A session that moves to another replica still takes part, without anybody saying so again.
#[tokio::test]
async fn a_session_that_is_taken_over_misses_no_durable_message() {
    let t = Fixture::new("moved").await;
    let (old, new) = (Process::start(t.builder(), t.server.url()).await, t.courier().await);
    let s = session("s");
    old.serve(&s, Recorder::new()).await;
    let subscribed = old.courier.topics();
    let moved = s.clone();
    let subscribing = old.runtime.spawn(async move { subscribed.subscribe(&moved, [topic("x")]).await });
    subscribing.await.expect("no panic").expect("subscribed");
    old.crash().await;
    let meanwhile = new.topics().send(Publish::new(&topic("x"), "meanwhile")).await.expect("published");
    assert_eq!((meanwhile.sessions, meanwhile.nodes), (1, 0));
    let sink = Recorder::new();
    new.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");
    new.topics().send(Publish::new(&topic("x"), "later")).await.expect("published");
    assert_eq!(sink.wait_for(2).await, ["meanwhile", "later"]);
    new.shutdown(LONG).await;
    t.finish().await;
}

/// Sessions that nobody owns any more, and nodes that died, vanish from a topic by themselves; those that are owned stay,
/// however long nothing is published.
#[tokio::test]
async fn dead_sessions_and_nodes_vanish_from_a_topic_and_living_ones_stay() {
    let t = Fixture::new("vanish").await;
    let builder = || t.builder().topic_keep(Duration::from_millis(400)).node_grace(Duration::from_millis(1));
    let living = t.connect(builder()).await;
    let _sink = serve(&living, "living", &[topic("x")]).await;
    let (dead, gone) = (Process::start(builder(), t.server.url()).await, session("gone"));
    dead.serve(&session("dead"), Recorder::new()).await;
    let topics = dead.courier.topics();
    let stream = dead.runtime.spawn(async move {
        topics.subscribe(&session("dead"), [topic("x")]).await.expect("subscribed");
        topics.listen([topic("x")]).await.expect("listening")
    });
    let stream = stream.await.expect("no panic");
    living.topics().subscribe(&gone, [topic("x"), topic("y")]).await.expect("subscribed");
    let members = || async {
        let all: std::collections::BTreeMap<String, String> =
            t.ask(&format!("HGETALL {}", t.key("m", "x"))).await;
        all.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(members().await, ["dead", "gone", "living"]);
    dead.crash().await;
    drop(stream);
    wait_until("only the living one is left", LONG, || async {
        match members().await {
            all if all == ["living"] => Ok(()),
            all => Err(format!("{all:?}")),
        }
    })
    .await;
    wait_until("the topic without sessions is forgotten", LONG, || async {
        let left: Vec<String> = t.ask(&format!("ZRANGE {} 0 -1", t.key("t", ""))).await;
        if left == ["x"] { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    // More than the life of an untouched key has passed.
    t.wait_server_ms(t.server_ms().await + 2000).await;
    wait_until("the dead node is off the list", LONG, || async {
        let published = living.topics().send(Publish::new(&topic("x"), "m")).await.expect("published");
        assert_eq!((published.sessions, published.nodes), (1, 1));
        let nodes: u64 = t.ask(&format!("HLEN {}", t.key("l", "x"))).await;
        if nodes == 1 { Ok(()) } else { Err(format!("{nodes} nodes")) }
    })
    .await;
    living.shutdown(LONG).await;
    t.finish().await;
}

/// Who leaves gets nothing more, and leaves nothing behind.
#[tokio::test]
async fn who_leaves_hears_nothing_more_and_leaves_no_key() {
    let t = Fixture::new("leave").await;
    let courier = t.courier().await;
    let sink = serve(&courier, "s", &[topic("x"), topic("y"), topic("z")]).await;
    let s = session("s");
    let mut stream = courier.topics().listen([topic("x")]).await.expect("listening");
    stream.add([topic("w")]).await.expect("listening");
    courier.topics().unsubscribe(&s, [topic("x")]).await.expect("left");
    stream.remove(&topic("x"));
    let published = courier.topics().send(Publish::new(&topic("x"), "nobody")).await.expect("published");
    assert_eq!(published.sessions, 0);
    courier.topics().send(Publish::new(&topic("y"), "y")).await.expect("published");
    courier.topics().send(Publish::new(&topic("w"), "w")).await.expect("published");
    assert_eq!((sink.wait_for(1).await, heard(&mut stream).await), (vec!["y".into()], "w".into()));
    courier.topics().forget(&s).await.expect("forgotten");
    drop(stream);
    wait_until("no list is left", LONG, || async {
        let left: Vec<_> =
            t.keys().await.into_iter().filter(|(k, _)| k.starts_with("m:") || k.starts_with("l:")).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    courier.shutdown(LONG).await;
    t.finish().await;
}

/// A reader that is too slow hears that it missed something; a keyed message it had not read yet is only there once.
#[tokio::test]
async fn a_slow_stream_hears_that_it_missed_something_and_a_shutdown_ends_it_when_it_is_read() {
    let t = Fixture::new("slow").await;
    let courier = t.courier().await;
    let mut stream = courier.topics().listen([topic("x"), topic("y")]).await.expect("listening");
    let hint = |at: &str, body: String| Publish::new(&topic(at), body).delivery(TopicDelivery::Hint);
    for n in 0..1100 {
        let sent = courier.topics().send(hint("x", n.to_string())).await.expect("published");
        assert_eq!(sent.nodes, 1);
    }
    // Frames are heard in order: when the last one is there, so are the others.
    let mut mark = courier.topics().listen([topic("y")]).await.expect("listening");
    courier.topics().send(hint("y", "mark".into())).await.expect("published");
    assert_eq!(heard(&mut mark).await, "mark");
    assert_eq!(stream.recv().await, Some(TopicEvent::Missed));
    assert_eq!(heard(&mut stream).await, "77", "of 1101 the newest 1024 are left");
    courier.shutdown(LONG).await;
    let mut left = 0;
    while let Some(event) = stream.recv().await {
        assert!(matches!(event, TopicEvent::Message(_)));
        left += 1;
    }
    assert_eq!(left, 1023);
    let refused = courier.topics().listen([topic("x")]).await.expect_err("after a shutdown");
    assert!(matches!(refused, mcp_courier::Error::Closed { .. }), "{refused:?}");
    t.finish().await;
}

/// What does not fit is refused with its name, and nothing is sent.
#[tokio::test]
async fn limits_of_topics_are_named() {
    let t = Fixture::new("limits").await;
    let courier = t.courier().await;
    assert!(Topic::new("").is_err() && Topic::new("x".repeat(1025)).is_err());
    assert!(Topic::resource(&"x".repeat(1020)).is_err());
    let big = Publish::new(&topic("x"), vec![b'x'; (64 << 10) + 1]);
    let e = courier.topics().send(big).await.expect_err("too large");
    assert!(matches!(e, mcp_courier::Error::TooLarge { what: "body for a topic", .. }), "{e:?}");
    let e = courier.topics().send(Publish::new(&topic("x"), "x").coalesce("")).await.expect_err("no key");
    assert!(matches!(e, mcp_courier::Error::Invalid { .. }), "{e:?}");
    // A full queue is one session's matter.
    let full = t.connect(t.builder().max_pending(1)).await;
    for s in ["full", "free"] {
        full.topics().subscribe(&session(s), [topic("x")]).await.expect("subscribed");
    }
    full.push(Push::new(&session("full"), "first")).await.expect("queued");
    let published = full.topics().send(Publish::new(&topic("x"), "m")).await.expect("published");
    assert_eq!((published.sessions, published.refused), (1, 1));
    wait_pending(&full, &session("free"), 1).await;
    t.finish().await;
}

/// F22: a replica whose connection breaks hears again and is told that it missed something; one that cannot hear any more
/// is off the lists, whatever else of it is alive.
#[tokio::test]
async fn f22_a_replica_that_hears_again_is_told_and_one_that_cannot_is_off_the_list() {
    let t = Fixture::plain("f22_topics").await;
    let proxy = Proxy::start(t.server.url()).await;
    let (a, b) = (t.connect_to(proxy.url()).await, t.courier().await);
    let (on_a, on_b) = (serve(&a, "a", &[topic("x")]).await, serve(&b, "b", &[topic("x")]).await);
    let mut stream = a.topics().listen([topic("x")]).await.expect("listening");
    let hint = |body: &str| Publish::new(&topic("x"), body).delivery(TopicDelivery::Hint);

    proxy.cut();
    assert_eq!(tokio::time::timeout(LONG, stream.recv()).await.expect("told"), Some(TopicEvent::Missed));
    wait_until("both hear it", LONG, || async {
        match b.topics().send(hint("again")).await.expect("published").nodes {
            2 => Ok(()),
            n => Err(format!("{n} nodes")),
        }
    })
    .await;
    on_a.wait_for(1).await;
    assert_eq!(heard(&mut stream).await, "again");

    // Scripts get through, a subscription does not.
    proxy.drop_requests_with(Some(b"SUBSCRIBE"));
    proxy.cut();
    wait_until("the deaf one is off the list", LONG, || async {
        let nodes = b.topics().send(hint("later")).await.expect("published").nodes;
        let listed: u64 = t.ask(&format!("HLEN {}", t.key("l", "x"))).await;
        if (nodes, listed) == (1, 1) { Ok(()) } else { Err(format!("{nodes} of {listed}")) }
    })
    .await;
    on_b.wait_for(2).await;
    // Back again, it says so by itself.
    proxy.drop_requests_with(None);
    wait_until("both hear it again", LONG, || async {
        match b.topics().send(hint("back")).await.expect("published").nodes {
            2 => Ok(()),
            n => Err(format!("{n} nodes")),
        }
    })
    .await;
    a.shutdown(LONG).await;
    b.shutdown(LONG).await;
    t.finish().await;
}

/// Whatever the number of sessions, a hint is one call for its publisher and one PUBLISH for each process.
#[tokio::test]
async fn a_hint_costs_one_call_and_a_publish_for_each_process() {
    let Some(server) = private_or_skip("hint_cost", Options::default()).await else { return };
    // Nothing beats or sweeps meanwhile.
    let rare = || {
        let rare = Courier::builder().heartbeat(Duration::from_secs(60)).lease(Duration::from_secs(180));
        rare.look_again(Duration::from_secs(300))
    };
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(rare().connect(server.url()).await.expect("connected"));
    }
    let mut sinks = Vec::new();
    for n in 0..90 {
        sinks.push(serve(&replicas[n % 3], &format!("s{n}"), &[topic("x")]).await);
    }
    let worker = rare().connect(server.url()).await.expect("connected");
    let hint = |body: &str| Publish::new(&topic("x"), body).delivery(TopicDelivery::Hint);
    worker.topics().send(hint("the script is known")).await.expect("published");
    let mut raw = server.raw().await;
    let mut calls = async |command: &str| -> u64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query_async(&mut raw).await.expect("INFO");
        let line = info.lines().find(|l| l.starts_with(&format!("cmdstat_{command}:")));
        let calls = line.and_then(|l| l.split("calls=").nth(1)).and_then(|l| l.split(',').next());
        calls.map_or(0, |n| n.parse().expect("a number"))
    };
    let before = [calls("evalsha").await, calls("eval").await, calls("publish").await];
    worker.topics().send(hint("counted")).await.expect("published");
    for sink in &sinks {
        sink.wait_for(2).await;
    }
    let after = [calls("evalsha").await, calls("eval").await, calls("publish").await];
    assert_eq!([0, 1, 2].map(|n| after[n] - before[n]), [1, 0, 3]);
    for replica in &replicas {
        replica.shutdown(LONG).await;
    }
}
