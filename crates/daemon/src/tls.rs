//! TLS as the configuration and the command line have it: which addresses have it, and with which files.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sheave_serve::{Address, Listener, Tls, TlsFiles};
use toml::Spanned;

use crate::failure::{self, Failure};

/// A certificate that expires within this time is to be renewed.
pub(crate) const RENEW: Duration = Duration::from_secs(14 * 86_400);

/// TLS of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPlan {
    /// The addresses; all of them, if there is none.
    pub listen: Vec<Address>,
    /// Clients must use it.
    pub required: bool,
    /// Certificates and keys; these addresses have no TLS where there are none.
    pub files: Option<TlsFiles>,
}

/// TLS of some addresses (all of them, if none is named), with its files read; without, where it is switched off.
pub type Loaded = (Vec<Address>, Option<Tls>);

/// The same in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsTable {
    #[serde(default)]
    listen: Vec<Spanned<String>>,
    mode: Option<Spanned<String>>,
    certificate: Spanned<PathBuf>,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    #[serde(default)]
    allow: Vec<String>,
}

impl TlsTable {
    /// The byte at which its certificate is named.
    pub(crate) fn place(&self) -> usize {
        self.certificate.span().start
    }

    /// Whether it is switched off, and is for no address by name.
    pub(crate) fn means_nothing(&self) -> bool {
        self.listen.is_empty() && self.mode.as_ref().is_some_and(|mode| mode.get_ref() == "off")
    }

    /// What it means, where these addresses are listened on; `None` when it means nothing. An error has its place.
    pub fn plan(self, addresses: &[Address]) -> Result<Option<TlsPlan>, (usize, String)> {
        let (on, required) = match &self.mode {
            None => (true, true),
            Some(mode) => match mode.get_ref().as_str() {
                "require" => (true, true),
                "allow" => (true, false),
                "off" if self.listen.is_empty() => return Ok(None),
                "off" => (false, false),
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
        let certificate = certificate.into_inner();
        let files = on.then_some(TlsFiles { certificate, key, client_ca, allow });
        Ok(Some(TlsPlan { listen, required, files }))
    }
}

/// Reads the files of all of them.
///
/// # Errors
///
/// Which of them cannot be used.
pub fn load(plans: &[TlsPlan]) -> Result<Vec<Loaded>, Failure> {
    let load = |plan: &TlsPlan| {
        let tls = plan.files.as_ref().map(|files| Tls::load(files, plan.required)).transpose()?;
        Ok((plan.listen.clone(), tls))
    };
    plans.iter().map(load).collect::<Result<_, _>>().map_err(failure::serve)
}

/// Gives each socket the TLS of its address: the first that names it, or names none. A socket at an address that is
/// not among those of `listen`, and of which no TLS is, keeps what it has: it listens until the daemon ends, and who
/// took its address out of the configuration did not mean to serve it to everybody.
///
/// # Errors
///
/// TLS is for an address that no socket has: the socket that was meant would take clients without it. Nothing has
/// changed then.
pub fn set(listeners: &[Listener], loaded: &[Loaded], listen: &[Address]) -> Result<(), Failure> {
    let names = |named: &Address, listener: &Listener| named == listener.asked_for() || named == listener.address();
    let named = loaded.iter().flat_map(|(listen, _)| listen);
    if let Some(nowhere) = named.into_iter().find(|named| !listeners.iter().any(|listener| names(named, listener))) {
        let there: Vec<_> = listeners.iter().map(|listener| listener.address().to_string()).collect();
        return Err(Failure::usage(format!("TLS is for {nowhere}, where no socket listens"))
            .fix(format!("write the address as the socket has it: {}", there.join(", "))));
    }
    for listener in listeners {
        let its = |listen: &[Address]| listen.is_empty() || listen.iter().any(|named| names(named, listener));
        match loaded.iter().find(|(listen, _)| its(listen)) {
            Some((_, tls)) => listener.set_tls(tls.clone()),
            None if listen.iter().any(|known| names(known, listener)) => listener.set_tls(None),
            None => {}
        }
    }
    Ok(())
}
