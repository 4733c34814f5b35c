//! Runs each operation of the core so many times: `quotagate-bench-core TIMES`. It is made for
//! callgrind.
//!
//! Callgrind counts only within [`measured`], and writes a file when it ends. The lines that this
//! program prints are the names of the operations, in the order of these files.

use std::env::args;
use std::hint::black_box;
use std::sync::Arc;

use quotagate_bench_core::{
    SEVEN, User, at, called, checks, config, decision, holding, keeping, leased, limited, now,
    reply, settled, spend, stop, waiting,
};
use quotagate_quota::config::{Config, LiveDocument};
use quotagate_quota::decision::Decision;
use quotagate_quota::evaluate::EvaluationScratch;
use quotagate_quota::exchange::{Arrival, Exchange, StreamState};
use quotagate_quota::response::{self, Upstream};
use quotagate_quota::worker::{Submitted, Worker};

/// How many requests a call carries in a measurement.
const GATHERED: [usize; 2] = [1, 32];

fn main() {
    let times = args().nth(1).and_then(|times| times.parse().ok());
    let times: usize = times.unwrap_or_else(|| stop("say how many times to run each operation"));
    let plain = Arc::new(config());

    println!("evaluate");
    let mut scratch = EvaluationScratch::default();
    measured(&mut vec![SEVEN; times], |user: &mut &User| plain.evaluate_in(&mut scratch, *user));

    println!("submit: a unit out of a lease");
    let leased = Arc::new(leased());
    let mut worker = holding(&leased);
    submit(&mut worker, &leased, times);

    println!("submit: a refusal out of the ledger");
    let mut worker = Worker::new(Arc::clone(&plain), 1);
    spend(&mut worker, &plain);
    submit(&mut worker, &plain, times);

    for live in [None, Some(LiveDocument::default())] {
        let what = if live.is_some() { ", whose document is live" } else { "" };
        println!("admit a request out of a lease{what}");
        let mut config = (*leased).clone();
        config.live = live;
        let config = Arc::new(config);
        let mut worker = holding(&config);
        let evaluate = |_| (Exchange::default(), Some(config.evaluate(&User(7))));
        let mut requests: Vec<_> = (0..times).map(evaluate).collect();
        let is_over = measured(&mut requests, |(exchange, evaluation)| {
            let Some(evaluation) = evaluation.take() else { return false };
            exchange.arrive(7, evaluation, None, &mut worker, at(2));
            exchange.response_begins();
            exchange.release_config()
        });
        if is_over.contains(&false) {
            stop("a request waits");
        }
    }

    println!("take a slot that the worker keeps, and free it");
    let limited = Arc::new(limited());
    let mut worker = keeping(&limited);
    let mut inputs: Vec<_> = (0..times).map(|_| Some(checks(&limited, 7))).collect();
    let is_admitted = measured(&mut inputs, |checks| {
        let submitted = worker.submit(7, checks.take().unwrap_or_default(), at(2));
        let Submitted::Decided(Decision::Admit(admission)) = submitted else { return false };
        worker.free(admission.slots, at(2));
        true
    });
    if is_admitted.contains(&false) {
        stop("the worker keeps no slot");
    }

    println!("settle a response");
    let (mut worker, mut exchanges) = admitted(times);
    let settled = measured(&mut exchanges, |exchange| {
        exchange.response_begins();
        exchange.response_headers(&Response, true, &mut worker, at(3));
        exchange.is_settled()
    });
    if settled.iter().any(|is_settled| !is_settled) {
        stop("a response did not settle");
    }

    for requests in GATHERED {
        println!("encode a call of {requests}");
        let mut workers: Vec<_> = (0..times).map(|_| waiting(&plain, requests)).collect();
        measured(&mut workers, |worker| worker.next_call(at(1)).map(|call| call.body()));
    }
    for requests in GATHERED {
        println!("decode a reply of {requests}, and decide");
        let mut workers: Vec<_> = (0..times).map(|_| called(&plain, requests)).collect();
        let end = reply(requests, 1);
        measured(&mut workers, |(worker, call)| worker.call_ended(*call, &end, at(2)));
    }

    println!("headers of an admitted request");
    let Decision::Admit(admission) = decision(&plain, 1) else { stop("it is not admitted") };
    let mut standings = vec![&admission.standings[..]; times];
    let mut scratch = String::new();
    measured(&mut standings, |standings| {
        let headers = response::response_headers(&plain, standings, &Response, now);
        headers.map(|headers| {
            headers.write(&mut scratch, |_, name, value| {
                black_box((name, value));
            });
        })
    });

    println!("answer to a refused request");
    let refused = decision(&plain, 0);
    measured(&mut vec![&refused; times], |decision| response::answer(&plain, decision, now));
}

/// Carries out an operation on each input. The caller drops the inputs and the results.
#[inline(never)]
fn measured<I, T>(inputs: &mut [I], operation: impl FnMut(&mut I) -> T) -> Vec<T> {
    black_box(black_box(inputs).iter_mut().map(operation).collect())
}

/// Requests that are decided at once.
fn submit(worker: &mut Worker<usize>, config: &Config, times: usize) {
    let mut inputs: Vec<_> = (0..times).map(|_| Some(checks(config, 7))).collect();
    let decided =
        measured(&mut inputs, |checks| worker.submit(7, checks.take().unwrap_or_default(), at(2)));
    if decided.iter().any(|submitted| !matches!(submitted, Submitted::Decided(_))) {
        stop("a request must wait");
    }
}

/// Requests that were admitted at a cost that only their responses say.
fn admitted(times: usize) -> (Worker<usize>, Vec<Exchange>) {
    let config = Arc::new(settled());
    let mut worker = Worker::new(Arc::clone(&config), 1);
    let mut exchanges: Vec<Exchange> = (0..times).map(|_| Exchange::default()).collect();
    for (user, exchange) in exchanges.iter_mut().enumerate() {
        let evaluation = config.evaluate(&User(user));
        if exchange.arrive(user, evaluation, None, &mut worker, at(1)) != Arrival::Waiting {
            stop("a request does not wait");
        }
    }
    while let Some(call) = worker.next_call(at(1)) {
        worker.call_ended(call.id, &reply(call.request.reservations.len(), 5), at(2));
    }
    while let Some((user, decision)) = worker.next_decision() {
        let Some(exchange) = exchanges.get_mut(user) else { stop("an unknown request") };
        exchange.decided(decision, StreamState::Open, &mut worker, at(2));
    }
    (worker, exchanges)
}

/// A response that says its cost.
struct Response;

impl Upstream for Response {
    fn status(&self) -> Option<u16> {
        Some(200)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        if name == "x-cost" { vec![b"3".to_vec()] } else { Vec::new() }
    }
}
