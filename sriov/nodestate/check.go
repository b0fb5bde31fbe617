package nodestate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/strictjson"
)

// The kernel's limits; drivers can be narrower.
const (
	minMTU = 68
	maxMTU = 65535
)

// maxName is the kernel's limit for alternative names.
const maxName = 127

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	notInName  = regexp.MustCompile(`[\s/:\x00-\x1f\x7f]`)
)

// Check validates the spec without the machine. The error joins one
// *strictjson.Problem per mistake.
func (s Spec) Check() error { return join(s.Mistakes()) }

// CheckNode validates what concerns the whole node.
func (s Spec) CheckNode() error {
	return join(slices.DeleteFunc(s.Mistakes(), func(m Mistake) bool { return m.PF != "" }))
}

// Mistake is a mistake in a spec.
type Mistake struct {
	PF string // whose desired state is not valid; "": the whole spec
	strictjson.Problem
}

func join(all []Mistake) error {
	var problems []strictjson.Problem
	for _, m := range all {
		problems = append(problems, m.Problem)
	}
	return strictjson.JoinErrors(problems)
}

// Mistakes validates the spec without the machine. A mistake in one interface
// leaves the others valid, unless its address is wrong: then the PF that it means
// is not known.
func (s Spec) Mistakes() []Mistake {
	c := &checker{}
	seen := map[string]int{}
	for n, i := range s.Interfaces {
		path := fmt.Sprintf("spec.interfaces[%d]", n)
		if c.pf = i.PCIAddress; !pciAddress.MatchString(c.pf) {
			c.pf = ""
		}
		if first, twice := seen[i.PCIAddress]; twice {
			c.fail(path+".pciAddress", "%q is already used by interfaces[%d]; list its groups there", i.PCIAddress, first)
		}
		seen[i.PCIAddress] = n
		c.checkInterface(path, i)
	}
	c.pf = ""
	c.oneOf("spec.system.rdmaMode", s.System.RDMAMode, Shared, Exclusive)
	return c.mistakes
}

type checker struct {
	pf       string
	mistakes []Mistake
}

func (c *checker) fail(path, format string, args ...any) {
	c.mistakes = append(c.mistakes, Mistake{c.pf, strictjson.Problem{Path: path, Text: fmt.Sprintf(format, args...)}})
}

func (c *checker) checkInterface(path string, i Interface) {
	c.address(path+".pciAddress", i.PCIAddress)
	c.name(path+".name", i.Name)
	if i.NumVFs < 0 || i.NumVFs > maxIndex+1 {
		c.fail(path+".numVfs", "invalid number of virtual functions %d, want 0 to %d", i.NumVFs, maxIndex+1)
	}
	c.mtu(path+".mtu", i.MTU)
	c.oneOf(path+".linkType", strings.ToLower(i.LinkType), Ethernet, InfiniBand)
	c.oneOf(path+".eSwitchMode", i.ESwitchMode, Legacy, Switchdev)
	if strings.EqualFold(i.LinkType, InfiniBand) && i.Mode() == Switchdev {
		c.fail(path+".eSwitchMode", "%q is for Ethernet only, the link type is %q", i.ESwitchMode, i.LinkType)
	}
	type placed struct {
		Range
		group int
	}
	var ranges []placed
	for n, g := range i.VFGroups {
		path := fmt.Sprintf("%s.vfGroups[%d]", path, n)
		c.group(path, i, g)
		r, err := ParseRange(g.VFRange)
		switch {
		case g.VFRange == "":
			c.fail(path+".vfRange", "it is missing: the group has no function; for all write %q", Range{0, max(i.NumVFs-1, 0)})
		case err != nil:
			c.fail(path+".vfRange", "%v", err)
		case r.Last >= i.NumVFs:
			c.fail(path+".vfRange", "%q does not fit: numVfs is %d, so the last function is %d", g.VFRange, i.NumVFs, i.NumVFs-1)
		default:
			ranges = append(ranges, placed{r, n})
		}
	}
	slices.SortStableFunc(ranges, func(a, b placed) int { return a.First - b.First })
	for n, widest := 1, 0; n < len(ranges); n++ {
		if a, b := ranges[widest], ranges[n]; a.Overlaps(b.Range) {
			c.fail(fmt.Sprintf("%s.vfGroups[%d].vfRange", path, b.group), "\"%v\" overlaps \"%v\" of vfGroups[%d]; a function is in one group", b.Range, a.Range, a.group)
		}
		if ranges[n].Last > ranges[widest].Last {
			widest = n
		}
	}
}

func (c *checker) group(path string, i Interface, g VFGroup) {
	c.oneOf(path+".deviceType", g.DeviceType, NetDevice, VFIO)
	c.mtu(path+".mtu", g.MTU)
	c.oneOf(path+".vdpaType", g.VDPAType, VirtIO, VHost)
	c.oneOf(path+".trust", g.Trust, On, Off)
	c.oneOf(path+".spoofChk", g.SpoofCheck, On, Off)
	if g.Type() == VFIO && g.IsRDMA {
		c.fail(path+".isRdma", "functions of deviceType %q have no RDMA device of the kernel; want deviceType %q, or no isRdma", VFIO, NetDevice)
	}
	if g.VDPAType != "" && g.Type() != NetDevice {
		c.fail(path+".vdpaType", "vDPA needs deviceType %q, not %q", NetDevice, g.DeviceType)
	}
	if g.VDPAType != "" && i.Mode() != Switchdev {
		c.fail(path+".vdpaType", "vDPA needs eSwitchMode %q, the interface has %q", Switchdev, i.Mode())
	}
}

func (c *checker) mtu(path string, mtu int) {
	if mtu != 0 && (mtu < minMTU || mtu > maxMTU) {
		c.fail(path, "%d is not a valid MTU, want %d to %d, or 0 for any", mtu, minMTU, maxMTU)
	}
}

func (c *checker) oneOf(path, word string, words ...string) {
	if word == "" || slices.Contains(words, word) {
		return
	}
	hint := "want " + strings.Join(words, " or ")
	if near := errs.Nearest(strings.ToLower(word), words); near != "" {
		hint = fmt.Sprintf("did you mean %q? It is one of %s", near, strings.Join(words, ", "))
	}
	c.fail(path, "%q is not known; %s", word, hint)
}

// address checks for the form of sysfs.
func (c *checker) address(path, address string) {
	if pciAddress.MatchString(address) {
		return
	}
	near := strings.ToLower(strings.TrimSpace(address))
	if strings.Count(near, ":") == 1 {
		near = "0000:" + near
	}
	hint := "want one such as \"0000:3b:00.0\""
	if pciAddress.MatchString(near) {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	c.fail(path, "%q is not a PCI address; %s", address, hint)
}

// name applies the kernel's rules.
func (c *checker) name(path, name string) {
	if len(name) > maxName || name == "." || name == ".." || notInName.MatchString(name) {
		c.fail(path, "%q is not a valid network device name: want at most %d characters without spaces, / and :", name, maxName)
	}
}

// Range is an inclusive range of VF indexes.
type Range struct{ First, Last int }

// maxIndex: sriov_numvfs has 16 bits.
const maxIndex = 1<<16 - 2

func (r Range) Has(index int) bool { return r.First <= index && index <= r.Last }

// Overlaps reports whether the ranges intersect.
func (r Range) Overlaps(o Range) bool { return r.First <= o.Last && o.First <= r.Last }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// ParseRange parses a vfRange: "0-3", or "2-2" for one function. The operator
// misinterprets lists and single numbers, so they are rejected.
func ParseRange(text string) (Range, error) {
	low, high, two := strings.Cut(text, "-")
	first, ok := index(low)
	if ok && !two {
		return Range{}, fmt.Errorf("%q is not a range of functions; for one function write \"%d-%d\"", text, first, first)
	}
	last, ok2 := index(high)
	switch {
	case strings.Contains(text, ","):
		return Range{}, fmt.Errorf("%q is a list: want one range such as \"0-3\", and a group for each", text)
	case !ok || !ok2:
		return Range{}, fmt.Errorf("%q is not a range of functions: want the first and the last such as \"0-3\", at most %d", text, maxIndex)
	case first > last:
		return Range{}, fmt.Errorf("%q is an empty range: did you mean \"%d-%d\"?", text, last, first)
	}
	return Range{first, last}, nil
}

func index(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && n <= maxIndex
}
