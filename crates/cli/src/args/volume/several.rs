//! Several volumes of one pool on a command line: `POOL#A B C`, or `POOL#A POOL#B POOL#C`.

use sheave_daemon::failure::Failure;
use sheave_daemon::place::VolumePlace;

use crate::args::value;

/// Returns the names of the first volume and of the following ones, in order.
///
/// # Errors
///
/// Returns an error if a volume is in another pool, or if its name is invalid. `what` is the verb for the message.
/// A volume is in another pool, or its name is invalid. `what` is the verb for the message.
pub fn names(first: &VolumePlace, more: &[String], what: &str) -> Result<Vec<String>, Failure> {
    let mut names = vec![first.name.clone()];
    for text in more {
        if !text.contains('#') {
            let name = value::volume_name(text)
                .map_err(|why| Failure::usage(format!("volume name '{text}': {why}")).fix("name a volume"))?;
            names.push(name);
            continue;
        }
        let other: VolumePlace =
            text.parse().map_err(|why| Failure::usage(format!("{text}: {why}")).fix("name a volume: POOL#NAME"))?;
        if other.pool != first.pool {
            return Err(Failure::usage(format!("{other} is in another pool than {first}"))
                .fix(format!("{what} the volumes of each pool with a command of its own")));
        }
        names.push(other.name);
    }
    Ok(names)
}
