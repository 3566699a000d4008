//! What servers and agents alike stand on: the runtime and its simulated twin ([`rt`]), the disk
//! and its simulated twin ([`disk`]), clocks, tasks that must not end, signals, metrics. Must never
//! know what a server or an agent does.

pub mod address;
pub mod caller;
pub mod clock;
pub mod disk;
pub mod histogram;
pub mod metrics;
pub mod open_files;
pub mod plant;
pub mod removal;
pub mod rt;
pub mod server_name;
pub mod signals;
pub mod task;
pub mod telemetry;
pub mod version;
