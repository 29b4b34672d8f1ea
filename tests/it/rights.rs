//! F44: the rights of the page are enough, and each of them is missed by name.

use std::time::Duration;

use mcp_courier::{Courier, Error, PushStatus};
use redis::aio::MultiplexedConnection;

use crate::support::capture::Capture;
use crate::support::fixture::{Recorder, push, session, wait_pending};
use crate::support::private::{Options, private_or_skip};
use crate::support::rights;
use crate::support::wait::wait_until;

async fn set_user(raw: &mut MultiplexedConnection, user: &str, rules: &[String]) {
    let mut acl = redis::cmd("ACL");
    acl.arg("SETUSER").arg(user).arg(rules);
    acl.exec_async(raw).await.unwrap_or_else(|e| panic!("{rules:?}: {e}"));
}

/// What starting to serve says, or nothing when it served.
async fn trouble(url: &str) -> Option<Error> {
    let courier = match Courier::connect(url).await {
        Ok(courier) => courier,
        Err(e) => return Some(e),
    };
    let (s, sink) = (session("s"), Recorder::new());
    if let Err(e) = courier.subscribers().ensure_running(&s, sink.clone()).await {
        return Some(e);
    }
    courier.push(push(&s, "x")).await.expect("queued");
    sink.wait_for(1).await;
    wait_pending(&courier, &s, 0).await;
    if let Err(e) = courier.dead_letters(&s).requeue(None).await {
        return Some(e);
    }
    if let Err(e) = courier.tasks().page(None).await {
        return Some(e);
    }
    courier.shutdown(Duration::from_secs(5)).await;
    None
}

/// F44: each right taken away alone is an error at the start that names it. Nothing is left half done.
#[tokio::test]
async fn f44_any_single_missing_right_is_an_error_that_names_it() {
    let Some(server) = private_or_skip("f44", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let all = rights::of_the_page(&mut raw, "courier").await;
    let mut checked = 0;
    for (n, taken) in all.iter().enumerate() {
        if !taken.starts_with(['+', '~', '&']) {
            continue;
        }
        let user = format!("u{n}");
        let rules: Vec<String> = all.iter().filter(|r| *r != taken).cloned().collect();
        set_user(&mut raw, &user, &rules).await;
        // Another database than 0, which is what SELECT is for.
        let url = format!("redis://{user}:password@127.0.0.1:{}/1", server.port());
        let found = trouble(&url).await;
        // HELLO is sent before the server knows which user we are.
        // The bridge to FastMCP alone calls LPUSH.
        let optional = ["+info", "+client|setinfo", "+hello", "+lpush"].contains(&&**taken);
        match found {
            None => assert!(optional, "without {taken} nothing is said"),
            Some(e) => {
                let name = taken.trim_start_matches('+').trim_end_matches('*');
                assert!(!optional, "{taken} is not needed, but: {e}");
                assert!(
                    matches!(&e, Error::Refused { code, .. } if code == "NOPERM"),
                    "without {taken}: {e:?}"
                );
                assert!(e.to_string().contains(name), "without {taken}: {e}");
            }
        }
        checked += 1;
    }
    assert!(checked > 35, "only {checked} rights");
    redis::cmd("SELECT").arg(1).exec_async(&mut raw).await.expect("the database in use");
    let keys = || async {
        let mut raw = raw.clone();
        redis::cmd("KEYS").arg("*probe*").query_async::<Vec<String>>(&mut raw).await.expect("keys")
    };
    // The one that could not be deleted goes by itself.
    wait_until("no probe is left", Duration::from_secs(5), || async {
        let left = keys().await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let left = keys().await;
    assert!(left.is_empty(), "{left:?}");
}

/// F44: a right that is taken away later. A push is stored all the same and says so; the owner's health names the right;
/// the message arrives; and all is well when the right is back.
#[tokio::test]
async fn f44_a_right_to_publish_that_goes_later_costs_time_and_no_message() {
    let Some(server) = private_or_skip("f44_later", Options::default()).await else { return };
    let mut raw = server.raw().await;
    let all = rights::of_the_page(&mut raw, "courier").await;
    set_user(&mut raw, "app", &all).await;
    let capture = Capture::start();
    let builder =
        Courier::builder().heartbeat(Duration::from_millis(200)).look_again(Duration::from_millis(300));
    let url = format!("redis://app:password@127.0.0.1:{}", server.port());
    let courier = builder.connect(url).await.expect("connected");
    let (s, sink) = (session("s"), Recorder::new());
    courier.subscribers().ensure_running(&s, sink.clone()).await.expect("claimed");

    set_user(&mut raw, "app", &["-publish".to_owned()]).await;
    let pushed = courier.push(push(&s, "stored")).await.expect("a push needs nobody to hear it");
    assert_eq!(pushed.status, PushStatus::Queued);
    wait_until("health names the right", Duration::from_secs(5), || async {
        match courier.health().commands {
            Some(e) if e.to_string().contains("publish") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(sink.wait_for(1).await, ["stored"]);
    assert_eq!(capture.lines_with(&["WARN", "nobody hears a doorbell"]).len(), 1);
    assert!(courier.metrics().doorbells_missed >= 1, "{:?}", courier.metrics());

    set_user(&mut raw, "app", &["+publish".to_owned()]).await;
    wait_until("healthy", Duration::from_secs(10), || async {
        if courier.health().is_healthy() { Ok(()) } else { Err(format!("{:?}", courier.health())) }
    })
    .await;
    courier.push(push(&s, "heard")).await.expect("queued");
    sink.wait_for(2).await;
    courier.shutdown(Duration::from_secs(5)).await;
}
