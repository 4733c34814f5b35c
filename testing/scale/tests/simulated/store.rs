//! The simulated store grants what the real one grants: the memory backend, which the store's own
//! tests compare with the script.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use quotagate_protocol::{Adjustment, Fixed, Kind, Reservation, ReserveReply, ReserveRequest};
use quotagate_scale::store::Store;
use quotagate_store::memory::Memory;
use quotagate_store::store::{Batch, CheckedReservation, Store as _};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

const PARTITIONS: usize = 3;
const WINDOW_S: u32 = 2;

fn key(random: &mut Xoshiro256PlusPlus) -> String {
    format!("scale:per-caller:{{jwt.sub={:010}}}", random.random_range(0..PARTITIONS))
}

fn reservation(random: &mut Xoshiro256PlusPlus) -> Reservation {
    let want = random.random_range(0..20);
    Reservation {
        key: key(random).into(),
        window_s: WINDOW_S,
        quota: random.random_range(90..110),
        want,
        min: random.random_range(want.min(1)..=want),
        spare: random.random_range(u64::from(want == 0)..30),
        ..Reservation::default()
    }
}

#[test]
fn simulated_store_grants_what_the_real_store_grants() {
    let random = &mut Xoshiro256PlusPlus::seed_from_u64(1);
    let clock = Arc::new(Mutex::new(Duration::from_secs(1_000)));
    let shared = Arc::clone(&clock);
    let real = Memory::new(Arc::new(move || *shared.lock().unwrap()));
    let window = Fixed::new(WINDOW_S, 0).unwrap();
    let mut simulated = Store::new(PARTITIONS, window);
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let now = {
            let mut clock = clock.lock().unwrap();
            *clock += Duration::from_micros(random.random_range(0..100_000));
            *clock
        };
        let mut back = |_| Adjustment {
            key: key(random).into(),
            kind: Kind::Fixed,
            window_s: WINDOW_S,
            offset_s: 0,
            window: window.number_at(now) - u64::from(random.random_bool(0.2)),
            units: random.random_range(1..10),
        };
        let refunds: Vec<_> = (0..2).map(&mut back).collect();
        let reservations: Vec<_> = (0..4).map(|_| reservation(random)).collect();

        let asks =
            reservations.iter().cloned().map(|ask| CheckedReservation::new(ask).unwrap()).collect();
        let deadline = Instant::now() + Duration::from_secs(60);
        let batch =
            Batch { deadline, refunds: refunds.clone(), charges: vec![], reservations: asks };
        let expected = real.reserve(&batch).now_or_never().unwrap();

        let body = serde_json::to_vec(&ReserveRequest {
            budget_ms: 50,
            refunds,
            charges: vec![],
            reservations,
        })
        .unwrap();
        let reply: ReserveReply =
            serde_json::from_slice(&simulated.carry_out(&body, now).unwrap()).unwrap();
        for (expected, outcome) in expected.iter().zip(&reply.grants) {
            let Ok(grant) = outcome else { panic!("{outcome:?}") };
            let expected = expected.as_ref().unwrap();
            // The script reads whole milliseconds of its clock, the memory backend all of it.
            assert!(grant.reset_ms.abs_diff(expected.reset_ms) <= 1);
            assert_eq!((grant.granted, grant.used), (expected.granted, expected.used));
            assert_eq!((grant.quota, grant.window), (expected.quota, expected.window));
            *if grant.granted > 0 { &mut granted } else { &mut refused } += 1;
        }
    }
    assert!(granted > 1_000 && refused > 1_000, "{granted} granted, {refused} not");
    assert_eq!((simulated.work.reservations, simulated.work.refunds), (8_000, 4_000));
}
