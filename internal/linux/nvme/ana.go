package nvme

import (
	"regexp"
	"strconv"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// pathName matches the name of the hidden device of a namespace at a controller,
// which only a kernel with multipath makes: nvme0c1n1.
var pathName = regexp.MustCompile(`^nvme[0-9]+c[0-9]+n[0-9]+$`)

// ANAStates returns the states of a controller's namespaces by NSID, as the target
// reports them (asymmetric namespace access): optimized, non-optimized,
// inaccessible, persistent-loss or change. A controller stays live meanwhile.
// Empty without multipath.
func (k *Kernel) ANAStates(c Controller) (map[uint32]string, error) {
	states := map[uint32]string{}
	dir, err := sysfs.Open(k.class(c.Name))
	if sysfs.IsAbsent(err) {
		return states, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !pathName.MatchString(name) {
			continue
		}
		nsid, state, err := readPath(dir, name)
		if sysfs.IsAbsent(err) {
			continue // being removed
		}
		if err != nil {
			return nil, err
		}
		states[nsid] = state
	}
	return states, nil
}

func readPath(controller sysfs.Dir, name string) (nsid uint32, state string, err error) {
	dir, err := controller.Open(name)
	if err != nil {
		return 0, "", err
	}
	defer dir.Close()
	text, err := dir.Text("nsid")
	if err != nil {
		return 0, "", err
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, "", err
	}
	state, err = dir.Text("ana_state")
	return uint32(id), state, err
}

// IsAccessible reports whether the kernel sends I/O to a namespace in a state.
func IsAccessible(anaState string) bool {
	return anaState == "" || anaState == "optimized" || anaState == "non-optimized"
}
