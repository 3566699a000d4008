//! What a server knows of itself and of the other members: who they are, who answers, who leads and
//! what time it is.

pub(crate) mod census;
pub(crate) mod contact;
pub(crate) mod hosts;
pub(crate) mod identity;
pub(crate) mod lifecycle;
pub(crate) mod majority;
pub(crate) mod peers;
pub(crate) mod settings;
pub(crate) mod time;
