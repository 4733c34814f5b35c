//! Two Envoys with two workers each, each Envoy with its own store, and one Redis.

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form};
use quotagate_support::http::{Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use serde_json::Value;

use crate::inspect;

/// Two proxies that share the document, the upstream and Redis. The fields are dropped in this
/// order.
pub struct Fleet {
    pub envoys: [Envoy; 2],
    pub upstream: Upstream,
    pub stores: [StoreProcess; 2],
    pub redis: Redis,
}

impl Fleet {
    /// Starts both proxies with this document.
    pub fn start(document: &Value) -> Result<Self> {
        Self::start_with(document, |_| Ok(()))
    }

    /// The same with this change to Envoy's configuration.
    pub fn start_with(
        document: &Value,
        edit: impl Fn(&mut Value) -> Result<()> + Copy + 'static,
    ) -> Result<Self> {
        let redis = Redis::start()?;
        let stores =
            [StoreProcess::start(&redis.url(), &[])?, StoreProcess::start(&redis.url(), &[])?];
        let upstream = Upstream::start()?;
        let start = |store: &StoreProcess| {
            let options = EnvoyOptions::new(upstream.port(), store.port()).redis(&redis.url());
            Envoy::start(&options.concurrency(2).document(document.clone()).edit(edit))
        };
        let envoys = [start(&stores[0])?, start(&stores[1])?];
        Ok(Self { envoys, upstream, stores, redis })
    }

    /// Opens this many connections, alternating between the two proxies.
    pub fn clients(&self, count: usize) -> Result<Vec<Client>> {
        (0..count).map(|i| Client::connect(self.envoys[i % 2].port())).collect()
    }

    /// Sends this many requests in total: each client sends one after the other, all clients at the
    /// same time. Returns how many were admitted. All others must be refused with 429.
    pub fn storm(&self, clients: &mut [Client], requests: usize) -> Result<u64> {
        let before = self.upstream.requests();
        let mut admitted = 0;
        for _ in 0..requests / clients.len() {
            for client in clients.iter_mut() {
                client.start(&Request::get("/"))?;
            }
            for client in clients.iter_mut() {
                match client.finish()?.status {
                    200 => admitted += 1,
                    429 => {}
                    other => anyhow::bail!("answered {other}"),
                }
            }
        }
        assert_eq!(self.upstream.requests() - before, admitted);
        Ok(admitted)
    }

    /// The number of calls that the stores answered.
    pub fn calls(&self) -> Result<u64> {
        match Form::of_run()? {
            Form::Wasm => self.stores.iter().map(|store| inspect::calls(store, 200)).sum(),
            Form::Native => {
                let labels = [("domain", "shop"), ("outcome", "ok")];
                let of = |envoy: &Envoy| envoy.metric("quotagate_calls", &labels);
                self.envoys.iter().map(|envoy| Ok(of(envoy)?.unwrap_or_default())).sum()
            }
        }
    }
}
