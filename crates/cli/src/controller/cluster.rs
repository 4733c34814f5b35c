//! The connection to the API server.

use std::error::Error;
use std::time::Duration;

use kube::{Client, Config};

/// How long a connection to the API server may be silent while an answer is due. The API server
/// ends a watch after 290 s.
const SILENCE: Duration = Duration::from_secs(300);

/// A client of the cluster that the environment names.
///
/// # Errors
/// When no cluster is configured.
pub(super) async fn client() -> Result<Client, Box<dyn Error>> {
    Ok(Client::try_from(with_limit(Config::infer().await?, SILENCE))?)
}

/// Requests fail if the API server takes them and then says nothing for so long. By default, a
/// client waits for ever.
fn with_limit(mut config: Config, silence: Duration) -> Config {
    config.read_timeout = Some(silence);
    // Without this, the time would begin before a request is sent on an idle connection.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::timeout;

    use super::*;
    use crate::controller::fake_api::{FakeApi, until};
    use crate::controller::metrics::ControllerMetrics;
    use crate::controller::watched::Watched;
    use crate::controller::watched_kinds::WatchedKind;

    #[tokio::test]
    async fn watch_request_that_is_never_answered_is_begun_anew() {
        let api = FakeApi::default();
        let plurals = WatchedKind::ALL.map(|kind| kind.resource().plural);
        api.serves(&plurals.each_ref().map(String::as_str));
        let address = api.serve().await;
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = Client::try_from(with_limit(config, Duration::from_secs(1))).unwrap();
        let watched = Watched::start(client, Arc::new(ControllerMetrics::new()));
        timeout(Duration::from_secs(30), watched.ready()).await.unwrap();
        // On a busy machine, a list may have taken longer than a second, too.
        let lists = plurals.each_ref().map(|plural| api.calls("LIST", plural));
        for (plural, lists) in plurals.iter().zip(lists) {
            until("a second watch", || api.calls("WATCH", plural) > 1).await;
            assert_eq!(api.calls("LIST", plural), lists, "what was known of {plural} counts");
        }
        assert!(watched.is_ready());
    }
}
