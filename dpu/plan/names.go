package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

const prefix = "cleat_"

// maxFsdev is the maximum length of a virtio-fs tag.
const maxFsdev = 17

// digest returns n hexadecimal digits for parts, which contain no NUL.
func digest(n int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])[:n]
}

// controllerName depends on the subsystem and the host only: SPDK refuses a
// second controller of one subsystem under another name (-17).
func controllerName(subNQN, hostNQN string) string {
	return controllerPrefix + digest(16, subNQN, hostNQN)
}

const controllerPrefix = prefix + "nvme_"

// IsController reports whether a plan assigns such names to controllers.
func IsController(name string) bool { return strings.HasPrefix(name, controllerPrefix) }

// Named returns the objects of a volume's device by its name, in the order of
// creation, with the fields that follow from the name. It returns nothing if
// neither a plan nor NVIDIA's sample plugin assigns that name. The name of a
// plan's controller does not depend on the volume.
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

// Names returns the names that a device of a volume can have, except those that
// depend on a controller.
func (s Settings) Names(volumeID string) []string {
	return []string{aioName(s.Plugin, volumeID), rbdName(s.Plugin, volumeID), fsdevName(s.Plugin, volumeID)}
}

// SampleController is the controller that NVIDIA's sample plugin attaches for a
// volume.
func SampleController(volumeID string) string { return "nvme_" + volumeID }

// namespaceName matches SPDK's names of a controller's bdevs.
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
