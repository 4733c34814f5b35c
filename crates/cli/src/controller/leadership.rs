//! Which of several controllers acts: the one that holds a Lease.
//!
//! The crates for this report what the API server said last. Here a leader that cannot renew its
//! Lease stops before it expires, by its own clock, so that a controller which the API server has
//! lost never publishes what is outdated.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// The name of the Lease.
const LEASE: &str = "quotagate-controller";
/// How long a Lease holds after it was renewed.
const HOLDS: Duration = Duration::from_secs(15);
/// How long its holder acts after it was renewed.
const ACTS: Duration = Duration::from_secs(12);
/// How often to look at it.
const RENEWAL: Duration = Duration::from_secs(4);

/// Whether this controller is the one that acts.
#[derive(Clone)]
pub(super) struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Tries to lead, until `stop` says so. Then another controller can lead at once.
    pub(super) fn start(
        client: Client,
        namespace: &str,
        holder: String,
        stop: oneshot::Receiver<()>,
    ) -> (Self, JoinHandle<()>) {
        let (renewed, receiver) = watch::channel(None);
        let leases = Api::namespaced(client, namespace);
        let candidate = Candidate { leases, holder, renewed, seen: None };
        (Self(receiver), tokio::spawn(candidate.run(stop)))
    }

    /// Of a controller that acts once.
    pub(super) fn always() -> Self {
        Self(watch::channel(Some(Instant::now())).1)
    }

    /// Whether it acts now.
    pub(super) fn acts(&self) -> bool {
        self.0.borrow().is_some_and(|at| at.elapsed() < ACTS)
    }

    /// Waits until it was renewed, or lost.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The candidate has stopped, and its task is awaited elsewhere.
            std::future::pending().await
        }
    }
}

/// What renews the Lease.
struct Candidate {
    leases: Api<Lease>,
    holder: String,
    /// When it was renewed last, if it is held.
    renewed: watch::Sender<Option<Instant>>,
    /// The Lease of another holder, and since when it has not been renewed. Clocks of two machines
    /// are not compared.
    seen: Option<(String, Instant)>,
}

impl Candidate {
    async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut stop => break,
                renewed = timeout(RENEWAL, self.renew()) => match renewed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!("Lease {LEASE}: {error}"),
                    Err(_) => tracing::warn!("Lease {LEASE}: the API server does not answer"),
                },
            }
            tokio::select! {
                _ = &mut stop => break,
                () = sleep(RENEWAL) => {}
            }
        }
        let _ = timeout(RENEWAL, self.release()).await;
    }

    /// Renews the Lease, or takes one that nobody renews.
    ///
    /// # Errors
    /// When the API server does not answer, or refuses.
    async fn renew(&mut self) -> kube::Result<()> {
        let begun = Instant::now();
        let done = match self.leases.get_opt(LEASE).await? {
            None => {
                let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
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
                self.leases.replace(LEASE, &PostParams::default(), &lease).await
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
        let Ok(Some(mut lease)) = self.leases.get_opt(LEASE).await else { return };
        if let Some(spec) = &mut lease.spec
            && spec.holder_identity.as_deref() == Some(&self.holder)
        {
            spec.holder_identity = None;
            // Otherwise it expires.
            let _ = self.leases.replace(LEASE, &PostParams::default(), &lease).await;
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
