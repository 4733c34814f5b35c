//! What a request costs in the pure core, natively and without a host. The budget in each name is
//! for the median on a slow core (2.4 GHz); `cargo xtask bench --micro` compares. In Wasm all of it
//! takes about twice as long, and host calls come on top.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use quotagate_bench_core::{
    CONFIGURATION, SEVEN, User, at, called, checks, config, decision, holding, leased, now, reply,
    spend, stop, waiting,
};
use quotagate_quota::config::{Config, PublishedDocument};
use quotagate_quota::decision::Decision;
use quotagate_quota::request::{HeaderValues, Request};
use quotagate_quota::response;
use quotagate_quota::worker::{Submitted, Worker};

fn main() {
    divan::main();
}

/// The same on another path.
struct OnPath(String);

impl Request for OnPath {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        SEVEN.method()
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        Some(self.0.as_bytes().into())
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        SEVEN.authority()
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        SEVEN.header(name)
    }
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        SEVEN.metadata(filter, path)
    }
    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        SEVEN.attribute(path)
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        SEVEN.source_address()
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        SEVEN.route_name()
    }
}

/// A path that the expression of [`matched_by_expression`] follows to its end.
#[derive(Clone, Copy, Debug)]
struct Expression {
    bytes: usize,
    budget: u32,
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} bytes, budget {} ns", self.bytes, self.budget)
    }
}

/// What distinguishes policies, how many there are, and what finding the last one may take.
#[derive(Clone, Copy, Debug)]
struct Among {
    by: By,
    policies: usize,
    budget: u32,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Route,
    Host,
    Exact,
    Prefix,
}

impl fmt::Display for Among {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, policies, budget } = self;
        write!(f, "by {by:?} among {policies}, budget {budget} ns")
    }
}

impl Among {
    fn config(self) -> Config {
        Config::parse(self.document().as_bytes()).unwrap_or_else(|faults| stop(faults))
    }

    fn document(self) -> String {
        let last = self.policies - 1;
        let policy = |i: usize| {
            let other =
                |this: &str| if i == last { this.to_owned() } else { format!("{this}-{i}") };
            let condition = match self.by {
                By::Route => format!(r#""routes": ["{}"]"#, other("items")),
                By::Host => format!(r#""hosts": ["{}"]"#, other("shop.example.com")),
                By::Exact => format!(r#""path": {{"exact": "{}"}}"#, other("/api/items")),
                By::Prefix => format!(r#""path": {{"prefix": "{}"}}"#, other("/api/it")),
            };
            format!(
                r#"{{"name": "p{i}", "match": {{{condition}}}, "partition_by": ["caller"], "quota": 1, "window": "1h"}}"#
            )
        };
        let policies: Vec<String> = (0..self.policies).map(policy).collect();
        format!(
            r#"{{"domain": "shop", "store": {{"cluster": "quota_store"}}, "live": true,
            "identities": {{"caller": [{{"header": {{"name": "x-user"}}}}]}},
            "policies": [{}]}}"#,
            policies.join(",")
        )
    }

    /// A published document of these policies, as the store sends it.
    fn published(self) -> PublishedDocument {
        let document = serde_json::from_str(&self.document()).unwrap_or_else(|error| stop(error));
        let (document, config) =
            PublishedDocument::check(&document).unwrap_or_else(|faults| stop(faults));
        let reply =
            format!(r#"{{"number": 7, "digest": "{}", "document": {document}}}"#, config.digest);
        let read = PublishedDocument::read(reply.as_bytes());
        read.ok().flatten().unwrap_or_else(|| stop("no document"))
    }
}

/// Requests of different users at once, and what one call for them may take.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    requests: usize,
    budget: u32,
}

impl fmt::Display for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}, budget {} ns", self.requests, self.budget)
    }
}

#[divan::bench(name = "match and key, budget 1000 ns")]
fn match_and_key(bencher: Bencher) {
    let config = config();
    bencher.bench_local(|| config.evaluate(black_box(&User(7))));
}

/// Behind 2048 bytes an expression is not tried.
#[divan::bench(name = "match a path by an expression", args = [
    Expression { bytes: 64, budget: 20_000 },
    Expression { bytes: 2_048, budget: 600_000 },
    Expression { bytes: 60_000, budget: 200_000 },
])]
fn matched_by_expression(bencher: Bencher, path: Expression) {
    let text = CONFIGURATION
        .replace(r#"{"prefix": "/api/"}"#, r#"{"regex": "/v[0-9]+/(users|orders)/.*"}"#);
    let config = Config::parse(text.as_bytes()).unwrap_or_else(|faults| stop(faults));
    let mut target = "/v1/users/".to_owned();
    target.extend(std::iter::repeat_n('a', path.bytes - target.len()));
    let request = OnPath(target);
    bencher.bench_local(|| config.evaluate(black_box(&request)));
}

/// A request among many policies. Its route, host or path leads to one.
#[divan::bench(name = "find a policy", args = [
    Among { by: By::Route, policies: 1, budget: 1_500 },
    Among { by: By::Route, policies: 64, budget: 2_000 },
    Among { by: By::Route, policies: 1024, budget: 2_000 },
    Among { by: By::Host, policies: 1, budget: 1_500 },
    Among { by: By::Host, policies: 64, budget: 2_000 },
    Among { by: By::Host, policies: 1024, budget: 2_000 },
    Among { by: By::Exact, policies: 1, budget: 1_500 },
    Among { by: By::Exact, policies: 64, budget: 2_000 },
    Among { by: By::Exact, policies: 1024, budget: 2_000 },
    Among { by: By::Prefix, policies: 1, budget: 1_500 },
    Among { by: By::Prefix, policies: 64, budget: 2_000 },
    Among { by: By::Prefix, policies: 1024, budget: 2_000 },
])]
fn among_policies(bencher: Bencher, among: Among) {
    let config = among.config();
    bencher.bench_local(|| config.evaluate(black_box(&User(7))));
}

/// Parsing and checking a published document. In the native module no request waits for it.
#[divan::bench(name = "check a published document", args = [
    Among { by: By::Prefix, policies: 1, budget: 60_000 },
    Among { by: By::Prefix, policies: 1024, budget: 40_000_000 },
])]
fn check_document(bencher: Bencher, among: Among) {
    let (embedded, document) = (among.config(), among.published());
    bencher.bench_local(|| black_box(&document).config(&embedded));
}

/// What the requests of a worker wait for when it takes up another document.
#[divan::bench(name = "take up a published document", args = [
    Among { by: By::Prefix, policies: 1, budget: 10_000 },
    Among { by: By::Prefix, policies: 1024, budget: 1_000_000 },
])]
fn take_up(bencher: Bencher, among: Among) {
    let (embedded, document) = (Arc::new(among.config()), Arc::new(among.published()));
    let config = document.config(&embedded).unwrap_or_else(|faults| stop(faults));
    let inputs = || {
        let mut worker = waiting(&embedded, 100);
        worker.inherit(Arc::clone(&document));
        (worker, config.clone())
    };
    bencher.with_inputs(inputs).bench_local_values(|(mut worker, config)| {
        if !worker.take_up(&document, Ok(config), at(1)) {
            stop("it is refused");
        }
        worker
    });
}

#[divan::bench(name = "match, key and a refusal out of the ledger, budget 1500 ns")]
fn ledger_hit(bencher: Bencher) {
    let config = Arc::new(config());
    let mut worker = Worker::new(Arc::clone(&config), 1);
    spend(&mut worker, &config);
    bencher.bench_local(|| worker.submit(7, checks(&config, black_box(7)), at(2)));
}

/// All samples together take 800 of the 1,000 units that the lease holds.
#[divan::bench(
    name = "match, key and units out of a lease, budget 1800 ns",
    sample_count = 8,
    sample_size = 100
)]
fn lease_hit(bencher: Bencher) {
    let config = Arc::new(leased());
    let mut worker = holding(&config);
    bencher.bench_local(|| match worker.submit(7, checks(&config, black_box(7)), at(2)) {
        Submitted::Decided(decision) => decision,
        waits => stop(format!("no unit is held: {waits:?}")),
    });
}

#[divan::bench(name = "encode a call", args = [
    Gathered { requests: 1, budget: 2_000 },
    Gathered { requests: 32, budget: 30_000 },
    Gathered { requests: 256, budget: 200_000 },
])]
fn encode(bencher: Bencher, gathered: Gathered) {
    let config = Arc::new(config());
    let inputs = || waiting(&config, gathered.requests);
    let bencher = bencher.counter(ItemsCount::new(gathered.requests)).with_inputs(inputs);
    bencher.bench_local_refs(|worker| worker.next_call(at(1)));
}

#[divan::bench(name = "decode a reply and decide", args = [
    Gathered { requests: 1, budget: 1_200 },
    Gathered { requests: 32, budget: 20_000 },
    Gathered { requests: 256, budget: 180_000 },
])]
fn decode(bencher: Bencher, gathered: Gathered) {
    let config = Arc::new(config());
    let end = reply(gathered.requests, 1);
    let inputs = || called(&config, gathered.requests);
    let bencher = bencher.counter(ItemsCount::new(gathered.requests)).with_inputs(inputs);
    bencher.bench_local_refs(|(worker, call)| worker.call_ended(*call, &end, at(2)));
}

#[divan::bench(name = "headers of an admitted request, budget 1000 ns")]
fn headers(bencher: Bencher) {
    let config = Arc::new(config());
    let Decision::Admit(admission) = decision(&config, 1) else { stop("not admitted") };
    bencher.bench_local(|| response::quota_headers(&config, black_box(&admission.standings), now));
}

#[divan::bench(name = "answer to a refused request, budget 2500 ns")]
fn refusal(bencher: Bencher) {
    let config = Arc::new(config());
    let decision = decision(&config, 0);
    bencher.bench_local(|| {
        response::answer(&config, black_box(&decision), now).map(|answer| answer.status)
    });
}
