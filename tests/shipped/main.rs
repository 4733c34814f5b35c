//! Checks everything that people copy, mount or deploy with the real programs: Envoy
//! configurations, Kubernetes documents, Compose, images, systemd, dashboards, alerts and
//! documents.

#![cfg(test)]

mod configurations;
mod documents;
mod examples;
mod kubernetes;
mod observability;
mod packaging;
mod rate_limit_service;
