package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// scalable is the type of the auxiliary devices that are somebody's to use. The
// others (mlx5_core.eth.0, ice.roce.1) are how one driver is split into parts.
const scalable = "sf"

// auxiliary reads the scalable functions, by name.
func (s *scan) auxiliary(functions devices, n *network, r *rdma) []Auxiliary {
	const bus = "bus/auxiliary/devices"
	var all []Auxiliary
	s.each(bus, 1, func(devices sysfs.Dir, name string, at devicePath) {
		_, kind, _, ok := parseAuxiliary(name)
		if !ok || kind != scalable {
			return
		}
		parent := functions.at[at.address]
		if parent == nil || at.below != "" {
			s.problem(name, fmt.Errorf("%s/%s hangs on no network function or accelerator that could be read, but on %q", bus, name, at.address))
			return
		}
		a, problems, there := readAuxiliary(devices, name)
		for _, err := range problems {
			s.problem(name, err)
		}
		if !there {
			return
		}
		a.Type, a.Parent = kind, *parent
		a.Netdev, a.RDMA = n.auxiliary[name], r.auxiliary[name]
		a.DefaultRoute = n.routed[devicePath{at.address, name}]
		all = append(all, a)
	})
	slices.SortFunc(all, func(a, b Auxiliary) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// readAuxiliary reads one; there is false when it went, or its driver could not
// be read.
func readAuxiliary(devices sysfs.Dir, name string) (a Auxiliary, problems []error, there bool) {
	a = Auxiliary{Name: name, Index: NoIndex}
	dir, err := devices.Open(name)
	if err == nil {
		defer dir.Close()
		a.Driver, err = linkBase(dir, "driver")
	}
	if err != nil {
		if !sysfs.IsAbsent(err) {
			problems = append(problems, err)
		}
		return a, problems, false
	}
	text, err := dir.Text("sfnum")
	if err != nil {
		// Its driver makes the file with the device: without it the device went.
		if !sysfs.IsAbsent(err) {
			problems = append(problems, err)
		}
		return a, problems, !sysfs.IsAbsent(err)
	}
	index, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return a, []error{fmt.Errorf("%s/sfnum holds %.40q: a decimal number is right", dir.Path(), text)}, true
	}
	a.Index = int(index)
	return a, nil, true
}

// parseAuxiliary takes the name of an auxiliary device apart: mlx5_core.sf.4.
func parseAuxiliary(name string) (driver, kind string, id int, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return "", "", 0, false
	}
	n, err := strconv.ParseUint(parts[2], 10, 31)
	return parts[0], parts[1], int(n), err == nil
}
