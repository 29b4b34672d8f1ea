//! The redis client over the engine.

use crate::memory::Memory;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisConnectionInfo, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

async fn connect(memory: &Memory) -> (MultiplexedConnection, UnboundedReceiver<PushInfo>, JoinHandle<()>) {
    let (sender, pushes) = unbounded_channel();
    let info = RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3);
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&info, memory.connect(), config).await.unwrap();
    (connection, pushes, tokio::spawn(driver))
}

#[tokio::test]
async fn a_script_on_one_connection_rings_the_subscriber_on_another_in_order() {
    let memory = Memory::private();
    let (mut bell, mut pushes, _) = connect(&memory).await;
    let (cmd, _, _) = connect(&memory).await;
    bell.subscribe("inbox").await.unwrap();
    assert_eq!(pushes.recv().await.unwrap().kind, PushKind::Subscribe);
    let script = "return redis.call('PUBLISH', KEYS[1], ARGV[1])";
    for n in 0..500 {
        let heard: i64 = redis::cmd("EVAL")
            .arg(script)
            .arg(1)
            .arg("inbox")
            .arg(n)
            .query_async(&mut cmd.clone())
            .await
            .unwrap();
        assert_eq!(heard, 1);
    }
    for n in 0..500 {
        let push = pushes.recv().await.unwrap();
        assert_eq!(push.kind, PushKind::Message);
        assert_eq!(push.data[1], Value::BulkString(n.to_string().into_bytes()));
    }
    bell.unsubscribe("inbox").await.unwrap();
    assert_eq!(pushes.recv().await.unwrap().kind, PushKind::Unsubscribe);
}

async fn many_tasks_get_their_own_replies() {
    let memory = Memory::private();
    let (mut connection, mut pushes, driver) = connect(&memory).await;
    connection.subscribe("noise").await.unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let mut connection = connection.clone();
            tokio::spawn(async move {
                let script = "redis.call('PUBLISH', 'noise', 'x') return ARGV[1]";
                for n in 0..100 {
                    let tag = format!("{task}:{n}");
                    let back: String =
                        redis::cmd("ECHO").arg(&tag).query_async(&mut connection).await.unwrap();
                    assert_eq!(back, tag);
                    let back: String = redis::cmd("EVAL")
                        .arg(script)
                        .arg(0)
                        .arg(&tag)
                        .query_async(&mut connection)
                        .await
                        .unwrap();
                    assert_eq!(back, tag);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut heard = 0;
    while heard < 6400 {
        heard += usize::from(pushes.recv().await.unwrap().kind == PushKind::Message);
    }
    drop((connection, pushes));
    driver.await.unwrap();
}

#[tokio::test]
async fn many_tasks_get_their_own_replies_on_one_thread() {
    many_tasks_get_their_own_replies().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_get_their_own_replies_on_many_threads() {
    many_tasks_get_their_own_replies().await;
}

#[tokio::test]
async fn a_cut_connection_is_reported_and_forgotten() {
    let memory = Memory::private();
    let (mut bell, mut pushes, driver) = connect(&memory).await;
    let (mut cmd, _, _) = connect(&memory).await;
    bell.subscribe("inbox").await.unwrap();
    pushes.recv().await.unwrap();
    let killed: i64 =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query_async(&mut cmd).await.unwrap();
    assert_eq!(killed, 1);
    assert_eq!(pushes.recv().await.unwrap().kind, PushKind::Disconnection);
    driver.await.unwrap();
    let heard: i64 = redis::cmd("PUBLISH").arg(&["inbox", "x"]).query_async(&mut cmd).await.unwrap();
    assert_eq!(heard, 0);
}

#[tokio::test]
async fn the_client_reads_floats_maps_and_scores() {
    let (mut connection, _, _) = connect(&Memory::private()).await;
    let _: () =
        redis::cmd("ZADD").arg(&["z", "1.5", "a", "2", "b"]).query_async(&mut connection).await.unwrap();
    let score: f64 = redis::cmd("ZSCORE").arg(&["z", "a"]).query_async(&mut connection).await.unwrap();
    let all: Vec<(String, f64)> =
        redis::cmd("ZRANGE").arg(&["z", "0", "-1", "WITHSCORES"]).query_async(&mut connection).await.unwrap();
    assert_eq!((score, all), (1.5, vec![("a".into(), 1.5), ("b".into(), 2.0)]));
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.unwrap();
    assert!(info.contains("redis_version:7.2") && info.contains("redis_mode:standalone"), "{info}");
}
