//! Leader services as sans-io machines: broker, blocked evaluations, plan queue, heartbeats, drainer.
