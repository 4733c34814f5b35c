//! All that is known of domains at one moment.

use futures_util::future::{join, try_join_all};

use super::cache::understand;
use super::record::{OverrideRecord, left_at};
use super::{Fault, Operate};
use crate::api::Board;
use crate::desk::Shelf;

impl Operate {
    /// The board of a domain, or of all.
    ///
    /// # Errors
    /// Where the domain is not known, or the backend fails.
    pub async fn boards(&self, domain: Option<&str>) -> Result<Vec<Board>, Fault> {
        let names = match domain {
            Some(domain) => vec![self.domain(Some(domain)).await?],
            None => self.domains().await?,
        };
        try_join_all(names.into_iter().map(|domain| self.board(domain))).await
    }

    async fn board(&self, domain: String) -> Result<Board, Fault> {
        let sheets = async {
            let desk = self.desk();
            let (dials, overrides) =
                join(desk.read(Shelf::Dials, &domain), desk.read(Shelf::Overrides, &domain)).await;
            Ok((dials?, overrides?))
        };
        let (policies, (dials, overrides)) = self.both(&domain, sheets).await?;
        let now = dials.now;
        let in_force = overrides.fields.iter().filter(|(_, value)| {
            let entry = serde_json::from_slice::<OverrideRecord>(value);
            entry.is_ok_and(|entry| left_at(entry.until_ms, now).is_some())
        });
        let overrides = u64::try_from(in_force.count()).unwrap_or(u64::MAX);
        let version = dials.version;
        let (dials, _) = understand(&dials);
        let dials = dials.iter().filter_map(|(policy, dial)| dial.entry(policy, now)).collect();
        Ok(Board { domain, version, durable: self.desk().durable(), policies, dials, overrides })
    }
}
