//! TLS as the configuration and the command line have it: which addresses have it, and with which files.

use std::path::PathBuf;

use serde::Deserialize;
use sheave_serve::{Address, Listener, Tls, TlsFiles};
use toml::Spanned;

use crate::failure::{self, Failure};

/// TLS of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPlan {
    /// The addresses; all of them, if there is none.
    pub listen: Vec<Address>,
    /// Clients must use it.
    pub required: bool,
    /// Certificates and keys.
    pub files: TlsFiles,
}

/// The same in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsTable {
    #[serde(default)]
    listen: Vec<Spanned<String>>,
    mode: Option<Spanned<String>>,
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    #[serde(default)]
    allow: Vec<String>,
}

impl TlsTable {
    /// What it means, where these addresses are listened on; `None` when it is switched off. An error has its place.
    pub fn plan(self, addresses: &[Address]) -> Result<Option<TlsPlan>, (usize, String)> {
        let required = match &self.mode {
            None => true,
            Some(mode) => match mode.get_ref().as_str() {
                "require" => true,
                "allow" => false,
                "off" => return Ok(None),
                _ => return Err((mode.span().start, "mode is \"require\", \"allow\" or \"off\"".into())),
            },
        };
        let known = |text: &Spanned<String>| {
            let wrong = |why: String| (text.span().start, why);
            let address: Address = text.get_ref().parse().map_err(|why| wrong(format!("{why}")))?;
            // Sockets that systemd makes are in no list.
            if addresses.is_empty() || addresses.contains(&address) {
                return Ok(address);
            }
            Err(wrong(format!("{address} is not among the addresses of 'listen'")))
        };
        let listen = self.listen.iter().map(known).collect::<Result<_, _>>()?;
        let TlsTable { certificate, key, client_ca, allow, .. } = self;
        Ok(Some(TlsPlan { listen, required, files: TlsFiles { certificate, key, client_ca, allow } }))
    }
}

/// Reads the files of all of them.
///
/// # Errors
///
/// Which of them cannot be used.
pub fn load(plans: &[TlsPlan]) -> Result<Vec<(Vec<Address>, Tls)>, Failure> {
    let load = |plan: &TlsPlan| Ok((plan.listen.clone(), Tls::load(&plan.files, plan.required)?));
    plans.iter().map(load).collect::<Result<_, _>>().map_err(failure::serve)
}

/// Gives each socket the TLS of its address: the first that names it, or names none.
pub fn set(listeners: &[Listener], loaded: &[(Vec<Address>, Tls)]) {
    for listener in listeners {
        let its = |listen: &[Address]| {
            listen.is_empty() || listen.contains(listener.asked_for()) || listen.contains(listener.address())
        };
        let found = loaded.iter().find(|(listen, _)| its(listen)).map(|(_, tls)| tls.clone());
        listener.set_tls(found);
    }
}
