// Package driver makes a CSI driver of a storage engine. A program with one Engine
// serves all services of CSI 1.13 with idempotent calls, of which equal ones are
// joined; stages and publishes volumes on nodes, also after a crash; registers with the
// kubelet without a sidecar; fences nodes for CSI-Addons, if the engine has a
// volume.Fencer; and has logs, metrics, /readyz and an orderly stop:
//
//	func main() {
//		driver.Main(driver.Program{
//			Name: "acme-csi", Version: "0.1.0", DriverName: "csi.acme.example",
//			Engines: []driver.Engine{{Name: "acme", Abilities: ..., Complete: ..., Open: ..., Node: ...}},
//		})
//	}
//
// The program is started as "acme-csi csi", in the processes and with the flags of
// "cleat csi", whose engines are instances of this package too. docs/vendor.md is a
// tutorial, and examples/engine its program.
//
// # Stability
//
// This package, csi (Deployment, Abilities, CheckName), node (Config and Attacher),
// volume, volume/access, volume/enginetest and errs are the public interface for
// engines. It is at version 0: a minor release can change it, and CHANGELOG.md then
// says what engines have to change. A patch release does not. api.txt lists what
// is exported. State on disks, in ConfigMaps and in volume contexts outlives all of them:
// each release reads that of the one before.
package driver
