//! The image of the rate limit service, unpacked and started.

use std::{fs, io::ErrorKind, time::Duration};

use quotagate_support::{
    http::{self, Client, Request},
    ports,
    process::Process,
    redis::Redis,
    store::BY_ENVOY_GATEWAY,
};
use serde_json::json;

use crate::{
    programs::show,
    unpacked::{Unpacked, user},
};

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(15);

const RULES: &str = "
domain: shop
descriptors:
  - {key: all, rate_limit: {unit: day, requests_per_unit: 1}}
";

#[test]
fn service_starts_from_its_image_as_envoy_gateway_starts_it() {
    let image = Unpacked::new("ratelimit").unwrap();
    assert_eq!((image.id("uid"), image.id("gid")), (Some(65_532), Some(65_532)));
    assert_eq!(image.words("args"), ["/bin/ratelimit"]);
    let folder = image.root().join("data/ratelimit/config");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("rules.yaml"), RULES).unwrap();
    let redis = Redis::start().unwrap();
    let [grpc, http, debug, metrics] = [(); 4].map(|()| ports::free().unwrap());
    let mut command = image.command().unwrap();
    command.envs(BY_ENVOY_GATEWAY).env("REDIS_URL", format!("127.0.0.1:{}", redis.port()));
    for (name, port) in [("GRPC_PORT", grpc), ("PORT", http), ("DEBUG_PORT", debug)] {
        command.env(name, port.to_string());
    }
    command.env("PROMETHEUS_ADDR", format!(":{metrics}")).env("QUOTAGATE_ADMIN", "127.0.0.1:0");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("service.log");
    let mut process = Process::spawn("the service", &mut command, &log).unwrap();
    let healthy = |process: &Process| {
        let log = process.log();
        let ready =
            log.contains("1 rule in 1 domain is in force") && log.contains("connected to redis");
        Ok((ready && http::get(http, "/healthcheck")?.status == 200).then_some(()))
    };
    process.wait_until("its health", START, healthy).unwrap();
    assert_eq!(user(process.pid()).unwrap(), "65532");
    let write = fs::write(format!("/proc/{}/root/file", process.pid()), "");
    assert_eq!(write.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    let entries = json!([{"key": "all", "value": "1"}]);
    let call = json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string();
    let mut client = Client::connect(http).unwrap();
    for status in [200, 429] {
        let length = call.len().to_string();
        let request = Request::post("/json", call.as_bytes()).header("content-length", length);
        let request = request.header("content-type", "application/json");
        assert_eq!(client.send(&request).unwrap().status, status);
    }
    drop(client);
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"all\"} 2";
    let scraped = http::get(metrics, "/metrics").unwrap().text().to_owned();
    assert!(scraped.contains(hits), "{scraped}");
    let status = process.terminate(STOP).unwrap();
    assert!(status.success(), "{status} after SIGTERM:\n{}", process.tail());
    show("the image of the rate limit service", &process.log()).unwrap();
}
