package inventory

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// scalable is the only allocatable type; the others (mlx5_core.eth.0,
// ice.roce.1) are internal to a driver.
const scalable = "sf"

func (s *scan) readAuxiliaries() {
	const bus = "bus/auxiliary/devices"
	s.eachDevice(bus, 1, func(devices sysfs.Dir, name string, at devicePath) {
		if _, kind, _, ok := parseAuxiliary(name); !ok || kind != scalable {
			return
		}
		parent := s.functions[at.address]
		if parent == nil || at.below != "" {
			s.problemOf(name, name, fmt.Errorf("%s/%s has no network function or accelerator as its parent that could be read, but %q", bus, name, at.address))
			return
		}
		a, exists, err := readAuxiliary(devices, name)
		s.problemOf(name, name, err)
		if exists {
			a.Type, a.Parent.Address = scalable, parent.Address
			s.auxiliary[name] = &a
		}
	})
}

// exists is false if the device was removed or its driver could not be read.
func readAuxiliary(devices sysfs.Dir, name string) (a Auxiliary, exists bool, err error) {
	a = Auxiliary{Name: name, Index: NoIndex}
	dir, err := devices.Open(name)
	if err != nil {
		return a, false, ignoreAbsent(err)
	}
	defer dir.Close()
	if a.Driver, err = linkBase(dir, "driver"); err != nil {
		return a, false, err
	}
	text, err := dir.Text("sfnum")
	if err != nil {
		// The driver creates sfnum with the device.
		return a, !sysfs.IsAbsent(err), ignoreAbsent(err)
	}
	index, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return a, true, fmt.Errorf("%s/sfnum holds %.40q: want a decimal number", dir.Path(), text)
	}
	a.Index = int(index)
	return a, true, nil
}

func parseAuxiliary(name string) (driver, kind string, id int, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", "", 0, false
	}
	n, err := strconv.ParseUint(parts[2], 10, 31)
	return parts[0], parts[1], int(n), err == nil
}
