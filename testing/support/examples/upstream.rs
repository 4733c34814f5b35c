//! The sample upstream on ports of 127.0.0.1, until Ctrl-C, for the configurations of
//! `envoy/examples`: `cargo run -p quotagate-support --example upstream -- 8080 8081`.

use std::thread;

use anyhow::{Context, Result};
use quotagate_support::upstream::Upstream;

fn main() -> Result<()> {
    let mut upstreams = Vec::new();
    for argument in std::env::args().skip(1) {
        let port = argument.parse().with_context(|| format!("{argument} is no port"))?;
        upstreams.push(Upstream::start_on(port)?);
        println!("an upstream answers on http://127.0.0.1:{port}");
    }
    loop {
        thread::park();
    }
}
