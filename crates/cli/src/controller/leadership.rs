//! Which of several controllers acts: the one that holds a Lease.
//!
//! The crates for this report what the API server said last. Here a leader that cannot renew its
//! Lease stops before it expires, by its own clock, so that a controller which the API server has
//! lost never publishes what is outdated.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a Lease holds after it was renewed.
const HOLDS: Duration = Duration::from_secs(15);
/// How long its holder acts after it was renewed.
const ACTS: Duration = Duration::from_secs(12);
/// How often to look at it.
const RENEWAL: Duration = Duration::from_secs(4);
/// How long the API server may take, and how long to wait after it failed: one slow answer does not
/// cost the lead.
const ANSWER: Duration = Duration::from_secs(3);
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// For how long a leader that cannot do its work leaves the Lease to others: so long that another
/// one finds the Lease expired, also if it could not be released and each answer of the API server
/// takes a second. The other one may see the last renewal a look too late, and find the Lease
/// expired a look too late.
const LEAVE: Duration =
    HOLDS.saturating_add(RENEWAL).saturating_add(RENEWAL).saturating_add(ANSWER);

/// Whether this controller is the one that acts.
#[derive(Clone)]
pub(super) struct Leadership {
    renewed: watch::Receiver<Option<Instant>>,
    /// Tells the candidate to let others lead.
    leave: Arc<Notify>,
}

impl Leadership {
    /// Tries to lead by the Lease with this name, until `stop` says so. Then another controller can
    /// lead at once.
    pub(super) fn start(
        client: Client,
        namespace: &str,
        lease: String,
        holder: String,
        stop: oneshot::Receiver<()>,
    ) -> (Self, JoinHandle<()>) {
        let leases = Api::namespaced(client, namespace);
        let (candidate, leadership) = Candidate::new(leases, lease, holder);
        (leadership, tokio::spawn(candidate.run(stop)))
    }

    fn of(renewed: watch::Receiver<Option<Instant>>) -> Self {
        Self { renewed, leave: Arc::default() }
    }

    /// Lets another controller lead, if there is one. Without one, this one leads again soon.
    pub(super) fn leave(&self) {
        self.leave.notify_one();
    }

    /// Of a controller whose Lease was renewed then.
    #[cfg(test)]
    pub(super) fn renewed(at: Instant) -> Self {
        Self::of(watch::channel(Some(at)).1)
    }

    /// Of one whose Lease ends after this time, and is renewed before.
    #[cfg(test)]
    pub(super) fn renewed_after(left: Duration) -> Self {
        let (renewed, receiver) = watch::channel(Some(Instant::now() + left - ACTS));
        tokio::spawn(async move {
            sleep(left / 2).await;
            renewed.send_replace(Some(Instant::now()));
        });
        Self::of(receiver)
    }

    /// Whether it acts now.
    pub(super) fn acts(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    fn until(&self) -> Option<Instant> {
        self.renewed.borrow().map(|renewed| renewed + ACTS)
    }

    /// Does this, and stops when it does not lead any more. So nothing is written after that which
    /// was read before.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let until = self.until().filter(|until| Instant::now() < *until)?;
        timeout_at(until, work).await.ok()
    }

    /// Waits until it was renewed, or lost.
    pub(super) async fn changed(&mut self) {
        if self.renewed.changed().await.is_err() {
            // The candidate has stopped, and its task is awaited elsewhere.
            std::future::pending().await
        }
    }
}

/// What renews the Lease.
struct Candidate {
    leases: Api<Lease>,
    /// The name of the Lease.
    lease: String,
    holder: String,
    /// When it was renewed last, if it is held.
    renewed: watch::Sender<Option<Instant>>,
    /// The Lease of another holder, and since when it has not been renewed. Clocks of two machines
    /// are not compared.
    seen: Option<(String, Instant)>,
    /// Says that it should let others lead.
    leave: Arc<Notify>,
    renewal: Duration,
    away: Duration,
}

impl Candidate {
    fn new(leases: Api<Lease>, lease: String, holder: String) -> (Self, Leadership) {
        let (renewed, receiver) = watch::channel(None);
        let leadership = Leadership::of(receiver);
        let leave = Arc::clone(&leadership.leave);
        let (renewal, away) = (RENEWAL, LEAVE);
        (Self { leases, lease, holder, renewed, seen: None, leave, renewal, away }, leadership)
    }

    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut said = None;
        loop {
            let renewed = tokio::select! {
                _ = &mut stop => break,
                renewed = timeout(ANSWER, self.renew()) => renewed,
            };
            let fault = match renewed {
                Ok(Ok(())) => None,
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => Some(format!(
                    "{}: the controller needs the verbs get, create and update on this Lease",
                    status.message
                )),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("the API server does not answer".to_owned()),
            };
            if let Some(fault) = fault.as_ref().filter(|fault| said.as_ref() != Some(*fault)) {
                tracing::warn!("Lease {}: {fault}", self.lease);
            }
            let wait = if fault.is_some() { AFTER_FAILURE } else { self.renewal };
            said = fault;
            let wait = tokio::select! {
                _ = &mut stop => break,
                () = sleep(wait) => Duration::ZERO,
                () = self.leave.notified() => self.away,
            };
            if !wait.is_zero() {
                let _ = timeout(ANSWER, self.release()).await;
                tokio::select! {
                    _ = &mut stop => break,
                    () = sleep(wait) => {}
                }
            }
        }
        let _ = timeout(ANSWER, self.release()).await;
    }

    /// Renews the Lease, or takes one that nobody renews.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses.
    async fn renew(&mut self) -> kube::Result<()> {
        let begun = Instant::now();
        let done = match self.leases.get_opt(&self.lease).await? {
            None => {
                let metadata =
                    ObjectMeta { name: Some(self.lease.clone()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(self.spec(None)) };
                self.leases.create(&PostParams::default(), &lease).await
            }
            Some(lease) if self.is_held(&lease) => {
                self.renewed.send_replace(None);
                return Ok(());
            }
            Some(lease) => {
                let spec = self.spec(lease.spec.as_ref());
                let lease = Lease { spec: Some(spec), ..lease };
                self.leases.replace(&self.lease, &PostParams::default(), &lease).await
            }
        };
        match done {
            Ok(_) => {
                self.renewed.send_replace(Some(begun));
                Ok(())
            }
            // Another one was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.renewed.send_replace(None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Lets another controller take the Lease at once.
    async fn release(&mut self) {
        if self.renewed.send_replace(None).is_none() {
            return;
        }
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.lease).await else { return };
        if let Some(spec) = &mut lease.spec
            && spec.holder_identity.as_deref() == Some(&self.holder)
        {
            spec.holder_identity = None;
            // Otherwise it expires.
            let _ = self.leases.replace(&self.lease, &PostParams::default(), &lease).await;
        }
    }

    /// Whether another controller renews it.
    fn is_held(&mut self, lease: &Lease) -> bool {
        let Some(spec) = &lease.spec else { return false };
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.holder {
            self.seen = None;
            return false;
        }
        let version = lease.resource_version().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => Instant::now(),
        };
        self.seen = Some((version, since));
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        since.elapsed() < seconds.map_or(HOLDS, Duration::from_secs)
    }

    fn spec(&self, old: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let old = old.cloned().unwrap_or_default();
        let is_same = old.holder_identity.as_deref() == Some(&self.holder);
        let acquired = old.acquire_time.filter(|_| is_same).unwrap_or_else(|| now.clone());
        let transitions = old.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(HOLDS.as_secs()).ok(),
            acquire_time: Some(acquired),
            renew_time: Some(now),
            lease_transitions: Some(if is_same { transitions } else { transitions + 1 }),
            ..old
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fake_api::{FakeApi, until};

    /// Where the API server has the Lease.
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/platform/leases/controller";

    fn candidate(api: &FakeApi, holder: &str) -> (Candidate, Leadership) {
        let leases = Api::namespaced(api.client(), "platform");
        Candidate::new(leases, "controller".to_owned(), holder.to_owned())
    }

    #[tokio::test]
    async fn one_of_two_leads_until_it_lets_the_other_one() {
        let api = FakeApi::default();
        let (mut first, leads) = candidate(&api, "first");
        let (mut second, stands_by) = candidate(&api, "second");
        first.renew().await.unwrap();
        second.renew().await.unwrap();
        assert!(leads.acts() && !stands_by.acts());
        first.renew().await.unwrap();
        second.renew().await.unwrap();
        assert!(leads.acts() && !stands_by.acts());
        first.release().await;
        second.renew().await.unwrap();
        assert!(!leads.acts() && stands_by.acts());
        first.renew().await.unwrap();
        assert!(!leads.acts());
    }

    #[tokio::test]
    async fn lease_that_nobody_renews_is_taken() {
        let api = FakeApi::default();
        candidate(&api, "first").0.renew().await.unwrap();
        let (mut second, leads) = candidate(&api, "second");
        second.renew().await.unwrap();
        let (version, since) = second.seen.clone().unwrap();
        second.seen = Some((version, since - HOLDS));
        second.renew().await.unwrap();
        assert!(leads.acts());
    }

    #[tokio::test]
    async fn leader_stops_before_its_lease_ends_also_in_the_middle_of_its_work() {
        let (renewed, receiver) = watch::channel(Some(Instant::now()));
        let leads = Leadership::of(receiver);
        assert_eq!(leads.during(async { 1 }).await, Some(1));
        renewed.send_replace(Some(Instant::now() - ACTS));
        assert!(!leads.acts());
        assert_eq!(leads.during(async { 1 }).await, None, "it does not begin");
        let almost = Instant::now() + Duration::from_millis(20) - ACTS;
        renewed.send_replace(Some(almost));
        let hangs = std::future::pending::<()>();
        assert_eq!(leads.during(hangs).await, None, "it does not go on");
    }

    #[tokio::test]
    async fn lease_that_could_not_be_released_is_taken_before_its_holder_comes_back() {
        // How long each answer of the API server takes.
        for answer in [0, 250, 500, 750, 900, 999].map(Duration::from_millis) {
            let api = FakeApi::default();
            let (mut first, leads) = candidate(&api, "first");
            let (mut second, stands_by) = candidate(&api, "second");
            first.renew().await.unwrap();
            second.renew().await.unwrap();
            // The first one renews it right after the second one looked, and leaves.
            first.renew().await.unwrap();
            api.refuses("leases", 500);
            first.release().await;
            api.refuses_nothing();
            let (look, mut passed) = (RENEWAL + answer, Duration::ZERO);
            while !stands_by.acts() {
                assert!(!leads.acts() && passed < LEAVE, "{answer:?}");
                passed += look;
                if let Some((_, since)) = &mut second.seen {
                    *since -= look;
                }
                second.renew().await.unwrap();
            }
            // Writing takes an answer, too.
            assert!(passed + answer < LEAVE, "{answer:?}: after {passed:?}");
            first.renew().await.unwrap();
            assert!(!leads.acts());
        }
    }

    /// Runs a candidate that stays away for so long once it leaves.
    fn run(api: &FakeApi, away: Duration) -> (Leadership, oneshot::Sender<()>) {
        let (mut candidate, leads) = candidate(api, "first");
        (candidate.renewal, candidate.away) = (Duration::from_millis(5), away);
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(candidate.run(stopped));
        (leads, stop)
    }

    #[tokio::test]
    async fn leader_that_leaves_comes_back_if_nobody_else_leads() {
        let api = FakeApi::default();
        let away = Duration::from_millis(50);
        let (leads, _stop) = run(&api, away);
        until("the first lead", || leads.acts()).await;
        let left = Instant::now();
        leads.leave();
        // It was released, and acquired a second time.
        let transitions = || api.get(LEASE)["spec"]["leaseTransitions"].clone();
        until("the second lead", || transitions() == 2 && leads.acts()).await;
        assert!(left.elapsed() >= away, "{:?}", left.elapsed());
    }

    #[tokio::test]
    async fn leader_that_leaves_lets_another_one_lead() {
        let api = FakeApi::default();
        let (leads, _stop) = run(&api, Duration::from_secs(3600));
        until("the first lead", || leads.acts()).await;
        let (mut second, stands_by) = candidate(&api, "second");
        second.renew().await.unwrap();
        assert!(!stands_by.acts());
        leads.leave();
        until("a Lease without a holder", || {
            api.get(LEASE)["spec"].get("holderIdentity").is_none_or(serde_json::Value::is_null)
        })
        .await;
        second.renew().await.unwrap();
        assert!(stands_by.acts() && !leads.acts());
    }

    #[tokio::test]
    async fn refused_lease_is_no_lead() {
        let api = FakeApi::default();
        api.refuses("leases", 403);
        let (mut candidate, leads) = candidate(&api, "first");
        candidate.renew().await.unwrap_err();
        assert!(!leads.acts());
    }
}
