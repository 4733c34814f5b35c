//! Rules from an xDS server, such as Envoy Gateway (`CONFIG_TYPE=GRPC_XDS_SOTW`).
//!
//! | part | does |
//! | --- | --- |
//! | `client` | keeps a stream to the server, and acknowledges or refuses what comes |
//! | `messages` | the messages of the protocol |
//! | `resources` | makes rules of the resources |

mod client;
mod messages;
mod resources;

pub use client::{Backoff, XdsOptions, follow, is_server};
pub use messages::{XdsDescriptor, XdsLimit, XdsReplaced, XdsRules};
pub use resources::{ResourceFault, read_resources};
