package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/inventory"
)

type sriovList struct {
	Devices  []sriovDevice `json:"devices"`
	Problems []string      `json:"problems"` // read errors
}

func newSriovListCommand(links inventory.Links) *cobra.Command {
	f := sriovFlags{links: links}
	var all bool
	var resource string
	c := &cobra.Command{
		Use:   "list",
		Short: "List the SR-IOV functions of this machine and their resources",
		Long: `Lists physical and virtual functions, accelerators and auxiliary devices of this
machine, with the resource of config.json that selects each, and the pod that holds
it according to the kubelet's PodResources API. "cleat sriov status" shows the
devices that the plugin offers.

Other network functions, without SR-IOV and a resource, are listed only with --all.`,
		Example: `  cleat sriov list
  cleat sriov list --resource intel.com/sriov_netdevice
  cleat sriov list --all -o json`,
		Args: noArgs,
	}
	f.addTo(c)
	c.Flags().BoolVar(&all, "all", false, "also list functions without SR-IOV")
	f.addResource(c, &resource, "only devices of this resource")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := f.survey(cmd, resource != "")
		if err != nil {
			return err
		}
		of, err := s.fullResourceName(resource)
		out := sriovList{Devices: []sriovDevice{}, Problems: s.problems}
		for _, d := range s.devices() {
			plain := d.Kind == "function" && d.Type == string(inventory.NetDevice) && d.Resource == "" && len(d.Pods) == 0
			if of == "" && (all || !plain) || of != "" && d.Resource == of {
				out.Devices = append(out.Devices, d.sriovDevice)
			}
		}
		err = f.printResult(cmd, out.table(s), out, err)
		if err != nil || f.output != cli.FormatTable {
			return err
		}
		notices := cli.Views{}
		for _, p := range s.problems {
			notices = append(notices, cli.Text("read failed: "+p))
		}
		if n := len(s.warnings); n > 0 {
			notices = append(notices, cli.Textf("%s for %s; see: cleat sriov validate", count(n, "warning"), f.config.file))
		}
		return errors.Join(err, notices.Write(cmd.ErrOrStderr()))
	}
	return c
}

// table omits unknown properties.
func (l sriovList) table(s sriovSurvey) cli.Table {
	t := cli.Table{Header: []string{"DEVICE", "KIND", "DRIVER", "NETDEV", "NUMA", "RDMA"}}
	if s.configured {
		t.Header = append(t.Header, "RESOURCE")
	}
	if s.podsKnown {
		t.Header = append(t.Header, "POD")
	}
	for _, d := range l.Devices {
		row := []any{d.ID, d.kind(), d.Driver, strings.Join(d.netdevNames(), ","), d.NUMA, strings.Join(d.RDMA, ",")}
		if s.configured {
			row = append(row, d.Resource)
		}
		if s.podsKnown {
			row = append(row, d.podNames())
		}
		t.Add(row...)
	}
	return t
}

// sriovDevice is a function or an auxiliary device.
type sriovDevice struct {
	ID           string        `json:"id"`
	Type         string        `json:"deviceType"`
	Kind         string        `json:"kind"`    // pf, vf, function, auxiliary, gone
	Address      string        `json:"address"` // of the parent for an auxiliary device
	Vendor       string        `json:"vendor"`
	Device       string        `json:"device"`
	Driver       string        `json:"driver,omitempty"`
	ParentDriver string        `json:"parentDriver,omitempty"` // of an auxiliary device
	NUMA         *int          `json:"numaNode,omitempty"`
	PF           string        `json:"pf,omitempty"` // of VFs and auxiliary devices
	PFName       string        `json:"pfName,omitempty"`
	Index        *int          `json:"index,omitempty"` // VF index, or SF number
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
	Resource     string        `json:"resource,omitempty"`
	LeftOut      string        `json:"leftOut,omitempty"` // why no resource is allowed to have it
	Wrong        string        `json:"wrong,omitempty"`   // why a device of a resource is unhealthy
	Pods         []sriovPod    `json:"pods,omitempty"`
}

type sriovNetdev struct {
	Name string `json:"name"`
	Link string `json:"link,omitempty"`
	MAC  string `json:"mac,omitempty"`
	MTU  int    `json:"mtu,omitempty"`
	Up   bool   `json:"up"`
}

type sriovPod struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Resource  string `json:"resource"` // that gave it the device
}

func sriovDeviceOf(d inventory.Device) sriovDevice {
	f := d.Function
	out := sriovDevice{
		ID: d.ID, Type: string(inventory.NetDevice), Kind: "function", Address: f.Address, Vendor: f.Vendor, Device: f.Device, Driver: f.Driver,
	}
	if f.NUMA != inventory.NoNode {
		out.NUMA = &f.NUMA
	}
	if len(f.PFNames) > 0 {
		out.PFName = f.PFNames[0]
	}
	netdevs, rdma := f.Netdevs, f.RDMA
	if a := d.Auxiliary; a != nil {
		out.Type, out.Kind, out.PF, out.Driver, out.ParentDriver = string(inventory.AuxNetDevice), "auxiliary", f.PF, a.Driver, f.Driver
		if a.Index != inventory.NoIndex {
			out.Index = &a.Index
		}
		netdevs, rdma, out.RDMACapable = a.Netdev, a.RDMA, a.RDMACapable
	} else {
		out.IOMMUGroup, out.Representor, out.DDPProfile, out.PKey, out.ACPIIndex = f.IOMMUGroup, f.Representor, f.DDPProfile, f.PKey, f.ACPIIndex
		out.RDMACapable, out.VFs, out.TotalVFs = f.RDMACapable, f.VFs, f.TotalVFs
		switch {
		case f.VF != inventory.NoIndex:
			out.Kind, out.PF, out.Index = "vf", f.PF, &f.VF
		case f.TotalVFs > 0 || f.VFs > 0:
			out.Kind = "pf"
		}
		if f.Kind == inventory.AcceleratorClass {
			out.Type = string(inventory.Accelerator)
		}
		if f.VDPA != nil {
			out.VDPA = f.VDPA.Name
		}
	}
	if f.Vendor == "" { // held by a pod, only the ID is known
		out.Kind = "gone"
	}
	for _, n := range netdevs {
		out.Netdevs = append(out.Netdevs, sriovNetdev{Name: n.Name, Link: n.Link, MAC: n.MAC, MTU: n.MTU, Up: n.Up})
	}
	for _, r := range rdma {
		out.RDMA = append(out.RDMA, r.Name)
	}
	return out
}

// kind returns the KIND column: "VF 3 of ens1f0", "PF, 4 of 64 VFs".
func (d sriovDevice) kind() string {
	of := cmp.Or(d.PFName, d.Address)
	switch {
	case d.Kind == "vf":
		return fmt.Sprintf("VF %d of %s", *d.Index, cmp.Or(d.PFName, d.PF))
	case d.Kind == "auxiliary" && d.Index != nil:
		return fmt.Sprintf("SF %d of %s", *d.Index, of)
	case d.Kind == "auxiliary" && of == "":
		return "auxiliary"
	case d.Kind == "auxiliary":
		return "auxiliary of " + of
	case d.Kind == "pf":
		return fmt.Sprintf("PF, %d of %d VFs", d.VFs, d.TotalVFs)
	case d.Kind == "function" && d.Type == string(inventory.Accelerator):
		return "accelerator"
	}
	return d.Kind
}

func (d sriovDevice) netdevNames() (names []string) {
	for _, n := range d.Netdevs {
		names = append(names, n.Name)
	}
	return names
}

func (d sriovDevice) podNames() string {
	var names []string
	for _, p := range d.Pods {
		name := p.Namespace + "/" + p.Pod
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (d sriovDevice) details() cli.Table {
	t := cli.Table{Header: []string{"DEVICE", d.ID}}
	resource := cmp.Or(d.Resource, "none")
	if d.LeftOut != "" && d.Resource == "" {
		resource = "none: " + d.LeftOut
	}
	t.Add("Resource", resource)
	for _, p := range d.Pods {
		t.Add("Pod", fmt.Sprintf("%s/%s, container %s, as %s", p.Namespace, p.Pod, p.Container, p.Resource))
	}
	t.AddKnown("Unhealthy", d.Wrong)
	t.AddKnown("Kind", d.kind())
	t.AddKnown("Device type", d.Type)
	if d.Kind == "auxiliary" {
		t.Add("Parent", fmt.Sprintf("%s, driver %s", d.Address, cmp.Or(d.ParentDriver, "(none)")))
	}
	if d.PF != "" && d.PF != d.Address {
		t.Add("PF", strings.TrimSpace(d.PF+" "+d.PFName))
	}
	t.Add("Vendor, device", d.Vendor+", "+d.Device)
	t.Add("Driver", cmp.Or(d.Driver, "(none)"))
	for _, n := range d.Netdevs {
		t.Add("Network device", n.describe())
	}
	t.AddKnown("NUMA node", d.NUMA)
	t.AddKnown("RDMA", d.RDMA)
	if len(d.RDMA) == 0 && d.RDMACapable {
		t.Add("RDMA", "capable, without an RDMA device on this machine")
	}
	t.AddKnown("vDPA", d.VDPA)
	t.AddKnown("IOMMU group", d.IOMMUGroup)
	t.AddKnown("Representor", d.Representor)
	t.AddKnown("DDP profile", d.DDPProfile)
	t.AddKnown("Partition key", d.PKey)
	t.AddKnown("ACPI index", d.ACPIIndex)
	return t
}

func (n sriovNetdev) describe() string {
	text := n.Name
	for _, part := range []string{n.Link, n.MAC} {
		if part != "" {
			text += ", " + part
		}
	}
	if n.MTU > 0 {
		text += fmt.Sprintf(", MTU %d", n.MTU)
	}
	if n.Up {
		return text + ", up"
	}
	return text + ", down"
}
