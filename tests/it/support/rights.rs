//! The ACL user of `docs/protocol.md`: the suite's couriers are this user wherever the server is a single one of the
//! tests' own.

use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;

/// The rules of the page for keys and channels under `prefix`, without those that an older server does not know.
pub async fn of_the_page(raw: &mut MultiplexedConnection, prefix: &str) -> Vec<String> {
    let block = crate::protocol::block("acl");
    let words = crate::protocol::known_rules(raw, block.split_whitespace().skip(2)).await;
    words.into_iter().map(|word| word.replace("courier:", &format!("{prefix}:"))).collect()
}

/// The same server as the least-privileged user, made once for this process.
pub async fn least_privileged(admin: &str) -> String {
    static MADE: OnceCell<()> = OnceCell::const_new();
    MADE.get_or_init(|| async {
        let mut raw = super::server::raw(admin).await;
        let rules = of_the_page(&mut raw, "t").await;
        let mut acl = redis::cmd("ACL");
        // The examples keep to the default prefix; and what the page adds for pushes that wait for replicas.
        acl.arg("SETUSER").arg("courier").arg(&rules).arg("~courier:*").arg("&courier:*").arg("+wait");
        acl.exec_async(&mut raw).await.expect("every rule of the page is one");
    })
    .await;
    admin.replacen("redis://", "redis://courier:password@", 1)
}
