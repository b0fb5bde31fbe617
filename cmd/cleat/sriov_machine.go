package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/pool"
)

// sriovMachine is what the commands take that look at this machine.
type sriovMachine struct {
	sriovConfig
	sriovKubelet
	sysfs  string
	links  discovery.Links // nil: the kernel's
	output cli.Format
}

func (f *sriovMachine) add(c *cobra.Command) {
	f.sriovConfig.add(c)
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.sysfs, "sysfs-root", "/sys", "where sysfs is mounted")
	f.sriovKubelet.add(e)
	cli.DescribeEnv(e)
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	f.environment.AddFlagSet(e)
	c.Flags().AddFlagSet(e)
}

// sriovSurvey is all that the commands know of a machine.
type sriovSurvey struct {
	config     config.Config
	configured bool
	warnings   []config.Warning
	snapshot   *discovery.Snapshot
	holders    sriovHolders
}

// sriovLookBound is how long looking at the machine may take.
const sriovLookBound = 30 * time.Second

// survey reads the configuration, the machine, and who has which device.
// Unless it is needed, a configuration that nobody named and that is not there
// is no error.
func (f *sriovMachine) survey(cmd *cobra.Command, needed bool) (s sriovSurvey, err error) {
	s.config, s.warnings, err = f.load(cmd)
	s.configured = err == nil
	if err != nil && (needed || cmd.Flags().Changed("config-file") || !errors.Is(err, fs.ErrNotExist)) {
		return s, err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, sriovLookBound)
	defer cancel()
	if s.snapshot, err = discovery.Discover(ctx, discovery.Config{Sysfs: f.sysfs, Links: f.links, Profiles: new(ddptool.Tool)}); err != nil {
		return s, err
	}
	s.holders, err = f.ask(ctx, cmd)
	return s, err
}

func (s sriovSurvey) options() pool.Options { return pool.Options{Held: s.holders.held()} }

// devices tells of all devices; auxiliary ones stand behind their parent.
func (s sriovSurvey) devices() []sriovExplained {
	explanations := pool.Explain(s.config, s.snapshot, s.options())
	place := func(e pool.Explanation) (address string, number int) {
		if e.Auxiliary == nil {
			return e.Address(), discovery.NoIndex - 1
		}
		return e.Address(), e.Auxiliary.Index
	}
	slices.SortStableFunc(explanations, func(a, b pool.Explanation) int {
		aAddress, aNumber := place(a)
		bAddress, bNumber := place(b)
		return cmp.Or(cmp.Compare(aAddress, bAddress), cmp.Compare(aNumber, bNumber), cmp.Compare(a.ID, b.ID))
	})
	var all []sriovExplained
	for _, e := range explanations {
		d := sriovExplained{sriovListed{sriovDeviceOf(e.Device), e.Resource, e.LeftOut, e.Wrong, s.holders.of(e.ID)}, []sriovVerdict{}}
		for _, v := range e.Verdicts {
			d.Verdicts = append(d.Verdicts, sriovVerdict(v))
		}
		all = append(all, d)
	}
	return all
}

// problems are what could not be read, as lines.
func (s sriovSurvey) problems() []string {
	lines := []string{}
	for _, p := range s.snapshot.Problems {
		lines = append(lines, fmt.Sprintf("%s: %v", p.What, p.Err))
	}
	if s.holders.why != "" {
		lines = append(lines, "pods: "+s.holders.why)
	}
	return lines
}

// load reads the configuration as the plugin does: what is probably a mistake
// is a warning.
func (f *sriovMachine) load(cmd *cobra.Command) (config.Config, []config.Warning, error) {
	texts, err := f.read(cmd.InOrStdin())
	if err != nil {
		return config.Config{}, nil, err
	}
	if len(texts) > 1 {
		var sources []string
		for _, t := range texts {
			sources = append(sources, t.source)
		}
		return config.Config{}, nil, fmt.Errorf("%s holds %d configurations (%s); one is wanted", f.file, len(texts), strings.Join(sources, "; "))
	}
	c, warnings, err := config.Parse(texts[0].text, config.Options{Prefix: f.prefix})
	if err != nil {
		return c, nil, fmt.Errorf("%s: %w", texts[0].source, err)
	}
	return c, warnings, nil
}

// sriovDevice is a function or an auxiliary device for programs.
type sriovDevice struct {
	ID           string        `json:"id"`
	Type         string        `json:"deviceType"`
	Kind         string        `json:"kind"`    // pf, vf, function, auxiliary, gone
	Address      string        `json:"address"` // of an auxiliary device: its parent's
	Vendor       string        `json:"vendor"`
	Device       string        `json:"device"`
	Driver       string        `json:"driver,omitempty"`
	ParentDriver string        `json:"parentDriver,omitempty"` // of an auxiliary device; selectors ask for this one
	NUMA         *int          `json:"numaNode,omitempty"`
	PF           string        `json:"pf,omitempty"` // of a virtual function and of auxiliary devices
	PFName       string        `json:"pfName,omitempty"`
	Index        *int          `json:"index,omitempty"` // of a virtual function below its PF, or the SF number
	VFs          int           `json:"vfs,omitempty"`
	TotalVFs     int           `json:"totalVFs,omitempty"`
	Netdevs      []sriovNetdev `json:"netdevs,omitempty"`
	RDMA         []string      `json:"rdma,omitempty"`
	RDMACapable  bool          `json:"rdmaCapable,omitempty"`
	VDPA         string        `json:"vdpa,omitempty"`
	IOMMUGroup   string        `json:"iommuGroup,omitempty"`
	Representor  string        `json:"representor,omitempty"`
	DDPProfile   string        `json:"ddpProfile,omitempty"`
	PKey         string        `json:"pKey,omitempty"`
	ACPIIndex    string        `json:"acpiIndex,omitempty"`
}

type sriovNetdev struct {
	Name string `json:"name"`
	Link string `json:"link,omitempty"`
	MAC  string `json:"mac,omitempty"`
	MTU  int    `json:"mtu,omitempty"`
	Up   bool   `json:"up"`
}

func sriovDeviceOf(d pool.Device) sriovDevice {
	f := d.Function
	out := sriovDevice{
		ID: d.ID, Type: string(config.NetDevice), Kind: "function", Address: f.Address, Vendor: f.Vendor, Device: f.Device, Driver: f.Driver,
		IOMMUGroup: f.IOMMUGroup, Representor: f.Representor, DDPProfile: f.DDPProfile, PKey: f.PKey, ACPIIndex: f.ACPIIndex,
		RDMACapable: f.RDMACapable, VFs: f.VFs, TotalVFs: f.TotalVFs,
	}
	if f.NUMA != discovery.NoNode {
		out.NUMA = &f.NUMA
	}
	if len(f.PFNames) > 0 {
		out.PFName = f.PFNames[0]
	}
	netdevs, rdma := f.Netdevs, f.RDMA
	switch {
	case d.Auxiliary != nil:
		a := d.Auxiliary
		out.Type, out.Kind, out.PF, out.Driver = string(config.AuxNetDevice), "auxiliary", f.PF, a.Driver
		out.ParentDriver = f.Driver
		out.VFs, out.TotalVFs, out.IOMMUGroup, out.Representor, out.DDPProfile, out.PKey, out.ACPIIndex, out.RDMACapable = 0, 0, "", "", "", "", "", a.RDMACapable
		if a.Index != discovery.NoIndex {
			out.Index = &a.Index
		}
		netdevs, rdma = a.Netdev, a.RDMA
	case f.VF != discovery.NoIndex:
		out.Kind, out.PF, out.Index = "vf", f.PF, &f.VF
	case f.TotalVFs > 0 || f.VFs > 0:
		out.Kind = "pf"
	}
	if f.Vendor == "" { // a pod has it, and nothing but its id is known
		out.Kind = "gone"
	}
	if f.Kind == discovery.Accelerator && d.Auxiliary == nil {
		out.Type = string(config.Accelerator)
	}
	for _, n := range netdevs {
		out.Netdevs = append(out.Netdevs, sriovNetdev{Name: n.Name, Link: n.Link, MAC: n.MAC, MTU: n.MTU, Up: n.Up})
	}
	for _, r := range rdma {
		out.RDMA = append(out.RDMA, r.Name)
	}
	if f.VDPA != nil && d.Auxiliary == nil {
		out.VDPA = f.VDPA.Name
	}
	return out
}

// kind is how people call it: VF 3 of ens1f0, PF with 4 of 64 VFs.
func (d sriovDevice) kind() string {
	of := cmp.Or(d.PFName, d.PF)
	switch {
	case d.Kind == "vf":
		return fmt.Sprintf("VF %d of %s", *d.Index, of)
	case d.Kind == "auxiliary" && d.Index != nil:
		return fmt.Sprintf("SF %d of %s", *d.Index, cmp.Or(d.PFName, d.Address))
	case d.Kind == "auxiliary":
		return strings.TrimSuffix("auxiliary of "+cmp.Or(d.PFName, d.Address), " of ")
	case d.Kind == "pf":
		return fmt.Sprintf("PF, %d of %d VFs", d.VFs, d.TotalVFs)
	case d.Kind == "function" && d.Type == string(config.Accelerator):
		return "accelerator"
	}
	return d.Kind
}

func (d sriovDevice) netdevNames() string {
	var names []string
	for _, n := range d.Netdevs {
		names = append(names, n.Name)
	}
	return strings.Join(names, ",")
}

func (d sriovDevice) numa() string {
	if d.NUMA == nil {
		return ""
	}
	return fmt.Sprint(*d.NUMA)
}

// findSriov finds the devices that a person names: by id, by an address
// without its domain, or by a network device's name.
func findSriov(all []sriovExplained, words []string) ([]sriovExplained, error) {
	var found []sriovExplained
	for _, word := range words {
		i := slices.IndexFunc(all, func(d sriovExplained) bool {
			return strings.EqualFold(d.ID, word) || strings.EqualFold(d.ID, "0000:"+word) ||
				slices.ContainsFunc(d.Netdevs, func(n sriovNetdev) bool { return n.Name == word })
		})
		if i < 0 {
			return nil, unknownSriov(all, word)
		}
		found = append(found, all[i])
	}
	return found, nil
}

func unknownSriov(all []sriovExplained, word string) error {
	var known []string
	for _, d := range all {
		known = append(known, d.ID)
		for _, n := range d.Netdevs {
			known = append(known, n.Name)
		}
	}
	if near := errs.Nearest(word, known); near != "" {
		return fmt.Errorf("this machine has no function %q; did you mean %q?", word, near)
	}
	return fmt.Errorf("this machine has no function %q; see: cleat sriov list --all", word)
}
