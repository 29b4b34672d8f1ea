//! Faults of the network between couriers and servers.

use std::time::Duration;

use super::Making;
use crate::output::Failure;
use crate::soak::proxy::Mode;
use crate::soak::recovery::Affected;
use crate::soak::stage::Stage;

impl Stage {
    pub(super) async fn network_cut(&mut self, making: &mut Making) -> Result<(), Failure> {
        let time = Duration::from_millis(self.chance.u64(200..6_000));
        making.note(format!("{time:?}"));
        self.servers.each_proxy(|proxy| proxy.set(Mode::Refuse));
        tokio::time::sleep(time).await;
        self.servers.each_proxy(|proxy| proxy.set(Mode::Pass));
        making.over();
        making.recovered(self, &Affected::All).await;
        Ok(())
    }

    pub(super) async fn half_open(&mut self, making: &mut Making) -> Result<(), Failure> {
        let both = self.chance.bool();
        making.note(if both { "silent both ways" } else { "replies are swallowed" });
        making.over();
        self.servers.each_proxy(|proxy| proxy.freeze(Mode::Silent { to_server: both, to_client: true }));
        making.recovered(self, &Affected::All).await;
        // Until then the server holds connections to nobody, as it would.
        self.servers.each_proxy(|proxy| proxy.cut_frozen());
        Ok(())
    }

    pub(super) async fn latency(&mut self, making: &mut Making) -> Result<(), Failure> {
        let delay = Duration::from_millis(self.chance.u64(50..400));
        let time = Duration::from_millis(self.chance.u64(1_500..5_000));
        making.note(format!("{delay:?} each way for {time:?}"));
        self.servers.each_proxy(|proxy| proxy.set(Mode::Delay(delay)));
        tokio::time::sleep(time).await;
        self.servers.each_proxy(|proxy| proxy.set(Mode::Pass));
        making.over();
        making.recovered(self, &Affected::All).await;
        Ok(())
    }
}
