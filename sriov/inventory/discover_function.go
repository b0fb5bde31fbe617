package inventory

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

type functionReading struct {
	// Nil: another class, removed, or not readable.
	function *Function
	physfn   string // "" for none
	capable  *sriovCapability
	problems []Problem
}

// sriovCapability is the SR-IOV capability of a physical function.
type sriovCapability struct {
	virtual []string // addresses by index
	device  string
	offset  int // routing id of the first VF minus the PF's
	stride  int
	total   int
}

// A missing attribute leaves its field empty. A function with unreadable
// identity, driver or PF is left out.
func readFunction(bus sysfs.Dir, address string) functionReading {
	var r functionReading
	add := func(err error) {
		if err := ignoreAbsent(err); err != nil {
			r.problems = append(r.problems, Problem{address, address, err})
		}
	}
	fail := func(err error) functionReading {
		add(err)
		return functionReading{problems: r.problems}
	}
	dir, err := bus.Open(address)
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	f := &Function{Address: address, PF: address, VF: NoIndex, NUMA: NoNode}
	if err := readIdentity(dir, f); err != nil {
		return fail(err)
	}
	switch f.Class >> 16 {
	case 0x02:
		f.Kind = NetworkClass
	case 0x12:
		f.Kind = AcceleratorClass
	default:
		return functionReading{}
	}
	if f.Driver, err = linkBase(dir, "driver"); err != nil {
		return fail(err)
	}
	if r.physfn, err = linkBase(dir, "physfn"); err != nil {
		return fail(err)
	}
	if r.physfn != "" && !isAddress(r.physfn) {
		return fail(fmt.Errorf("%s/physfn leads to %q, which is not a PCI address", dir.Path(), r.physfn))
	}
	if r.physfn == "" {
		if r.capable, err = readCapability(dir); err != nil {
			return fail(err)
		}
	}
	f.ACPIIndex, err = dir.Text("acpi_index")
	add(err)
	f.IOMMUGroup, err = readGroup(dir, f.Driver)
	add(err)
	// Attributes, even physfn, can be missing because the function is being
	// removed; numa_node exists until the removal is complete.
	node, err := readNumber(dir, "numa_node", absent)
	add(err)
	if node == absent && !dir.Has("device") && !dir.Has("modalias") {
		return functionReading{}
	}
	f.NUMA = max(node, NoNode)
	r.function = f
	return r
}

func readIdentity(dir sysfs.Dir, f *Function) error {
	alias, err := dir.Text("modalias")
	if m := pciAlias.FindStringSubmatch(alias); err == nil && m != nil {
		class, err := strconv.ParseUint(m[3]+m[4]+m[5], 16, 24)
		f.Class, f.Vendor, f.Device = uint32(class), strings.ToLower(m[1]), strings.ToLower(m[2])
		return err
	}
	var numbers [3]uint64
	for i, name := range []string{"class", "vendor", "device"} {
		text, err := dir.Text(name)
		if err != nil {
			return err
		}
		bits := []int{24, 16, 16}[i]
		if numbers[i], err = strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, bits); err != nil {
			return fmt.Errorf("%s/%s holds %.40q: want a hexadecimal number of %d bits", dir.Path(), name, text, bits)
		}
	}
	f.Class = uint32(numbers[0])
	f.Vendor, f.Device = fmt.Sprintf("%04x", numbers[1]), fmt.Sprintf("%04x", numbers[2])
	return nil
}

// Example: pci:v00008086d0000154Csv00008086sd00000000bc02sc00i00.
var pciAlias = regexp.MustCompile(`^pci:v0000([[:xdigit:]]{4})d0000([[:xdigit:]]{4})sv.{8}sd.{8}bc([[:xdigit:]]{2})sc([[:xdigit:]]{2})i([[:xdigit:]]{2})$`)

func linkBase(dir sysfs.Dir, name string) (string, error) {
	target, err := dir.Link(name)
	return base(target), ignoreAbsent(err)
}

// Without an IOMMU, VFIO creates its own groups, with device nodes named
// noiommu-N.
func readGroup(dir sysfs.Dir, driver string) (string, error) {
	group, err := linkBase(dir, "iommu_group")
	if err != nil || group == "" || !strings.Contains(driver, "vfio") {
		return group, err
	}
	kind, err := dir.Text("iommu_group/name")
	if err != nil && !sysfs.IsAbsent(err) {
		return "", err
	}
	if kind == "vfio-noiommu" {
		return "noiommu-" + group, nil
	}
	return group, nil
}

// absent is not a possible attribute value: these have 32 bits.
const absent = math.MinInt

func readNumber(dir sysfs.Dir, name string, otherwise int) (int, error) {
	text, err := dir.Text(name)
	if err != nil {
		return otherwise, ignoreAbsent(err)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return otherwise, fmt.Errorf("%s/%s holds %.40q: want a decimal number", dir.Path(), name, text)
	}
	return int(n), nil
}
