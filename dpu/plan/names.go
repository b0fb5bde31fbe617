package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Names begin so, for whoever looks at a SNAP process to know whose they are.
const prefix = "cleat_"

// maxFsdev is how long the name of a file system device may be: virtio-fs makes
// a tag of it.
const maxFsdev = 17

// digest is a short name for parts, of which none holds a NUL; n hexadecimal
// digits.
func digest(n int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:n]
}

// controllerName follows from the subsystem and the host alone: SPDK refuses a
// second controller to one subsystem under another name (-17), and its bdevs
// are called after it.
func controllerName(subNQN, hostNQN string) string {
	return controllerPrefix + digest(16, subNQN, hostNQN)
}

const controllerPrefix = prefix + "nvme_"

// IsController tells whether a controller has a name that plans give.
func IsController(name string) bool { return strings.HasPrefix(name, controllerPrefix) }

// Named returns the objects of a device of a volume by its name alone, in the
// order of creation, with the fields that follow from names. It returns none if
// neither a plan nor NVIDIA's sample plugin gives that name to a device of that
// volume. The name of a plan's controller does not contain the volume.
func (s Settings) Named(volumeID, device string) []Object {
	switch device {
	case aioName(s.Plugin, volumeID):
		return []Object{{ID: ID{AIO, device}, AIO: &AIOSpec{}}}
	case rbdName(s.Plugin, volumeID):
		return []Object{{ID: ID{RBD, device}, RBD: &RBDSpec{}}}
	case fsdevName(s.Plugin, volumeID):
		return []Object{{ID: ID{Mount, volumeID}, Mount: &MountSpec{}}, {ID: ID{AIOFsdev, device}, Fsdev: &FsdevSpec{Mount: volumeID}}}
	}
	if m := namespaceName.FindStringSubmatch(device); m != nil && (IsController(device) || m[1] == SampleController(volumeID)) {
		return []Object{{ID: ID{Controller, m[1]}, Controller: &ControllerSpec{}}}
	}
	return nil
}

// SampleController is the name that NVIDIA's sample plugin gives the controller
// that it attaches for a volume.
func SampleController(volumeID string) string { return "nvme_" + volumeID }

// namespaceName is how SPDK calls a controller's bdevs.
var namespaceName = regexp.MustCompile(`^(.+)n[1-9][0-9]*$`)

func keyName(plugin, file string) string { return prefix + "key_" + digest(16, plugin, file) }

func aioName(plugin, volumeID string) string { return prefix + "aio_" + digest(16, plugin, volumeID) }

func rbdName(plugin, volumeID string) string { return prefix + "rbd_" + digest(16, plugin, volumeID) }

func rbdClusterName(plugin string, identity ...string) string {
	return prefix + "ceph_" + digest(16, append([]string{plugin}, identity...)...)
}

func fsdevName(plugin, volumeID string) string {
	return "c" + digest(maxFsdev-1, plugin, volumeID)
}
