//! A change whose connection closes before it is done.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use quotagate_store::control::Key;
use quotagate_store::store::Store;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::common::{open, until};
use crate::http::host;
use crate::operators::reported;
use crate::served::Served;
use crate::slow::{Before, Slow, Step};

#[tokio::test]
async fn change_completes_after_its_connection_closes() {
    let (reached, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&reached), Arc::clone(&go));
    let before: Before = Box::new(move |step| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            if step == Step::Set {
                tell.notify_one();
                wait.notified().await;
            }
            Ok(())
        }
        .boxed()
    });
    let store: Arc<dyn Store> = Arc::new(Slow { inner: open("memory:").await, before });
    reported(&store, "d", &["p"]).await;
    let server = Served::start(Arc::clone(&store)).await;
    let own = host(&server.admin);
    let body =
        json!({"policy": "p", "partition": "jwt.sub=mallory", "allow": "blocked", "by": "ann"})
            .to_string();
    let head =
        format!("PUT /v1/overrides HTTP/1.1\r\nhost: {own}\r\ncontent-type: application/json\r\n");
    let mut stream = TcpStream::connect(&own).await.unwrap();
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    reached.notified().await;
    drop(stream);
    // Two round trips on another connection, so that the server has seen the first one close.
    for _ in 0..2 {
        assert_eq!(server.get("/v1/boards").await.0, 200);
    }
    go.notify_one();
    until("history records it", Duration::from_secs(20), async || {
        let (_, history) = server.get("/v1/history").await;
        (history[0]["done"] == "set override p jwt.sub=mallory: blocked").then_some(())
    })
    .await;
    let key = Key::Override("d:p:{jwt.sub=mallory}");
    let value = store.control().get(key).await.unwrap().value;
    assert_eq!(value.as_deref(), Some("blocked"));
}
