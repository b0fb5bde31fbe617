package inventory

import (
	"fmt"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/yaml"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// cdiVersion is the lowest that knows device names with a digit first and paths
// that differ inside and outside; higher ones shut out older runtimes.
const cdiVersion = "0.5.0"

// The names of CDI specs of any resource.
const (
	cdiPrefix = "sriov-dp-"
	cdiSuffix = ".yaml"
)

// cdiClass is the class of a resource's CDI devices; their vendor is its prefix.
func cdiClass(r Resource) string {
	switch r.Type {
	case Accelerator:
		return "net-accel"
	case AuxNetDevice:
		return "net-sf"
	}
	return "net-pci"
}

func cdiKind(r Resource) string { return r.Prefix + "/" + cdiClass(r) }

// CDISpec composes the CDI specification of a resource's devices, as YAML, and
// the name of its file. Devices without device nodes are left out, since CDI
// allows none without edits; content is nil if no device is left, and the file
// must not exist then. Allocate checks whether nodes exist.
func CDISpec(r Resource, members []Member, s AllocateSettings) (file string, content []byte, err error) {
	file = cdiPrefix + r.Prefix + "-" + cdiClass(r) + "-" + r.Name + cdiSuffix
	if err := checkVendor(r); err != nil {
		return "", nil, err
	}
	if !isFileName(file) {
		return "", nil, fmt.Errorf("the CDI spec of %s cannot have the name %.80q: want letters, digits and ._-:, at most %d", r.FullName(), file, maxName)
	}
	spec := cdi.Spec{Version: cdiVersion, Kind: cdiKind(r)}
	for _, m := range members {
		g := s.edits(r, m)
		if len(g.nodes) == 0 || !deviceName.MatchString(m.ID) {
			continue
		}
		device := cdi.Device{Name: m.ID}
		for _, n := range uniqueNodes(g.nodes) {
			device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes,
				&cdi.DeviceNode{Path: n.container, HostPath: n.host, Permissions: nodePermissions})
		}
		spec.Devices = append(spec.Devices, device)
	}
	if len(spec.Devices) == 0 {
		return file, nil, nil
	}
	if content, err = yaml.Marshal(spec); err != nil {
		return "", nil, fmt.Errorf("write the CDI spec of %s: %w", r.FullName(), err)
	}
	return file, content, nil
}

// addCDIDevices names CDI devices in an answer. The annotation is upstream's,
// with the name that CDI's library uses. The name is the same for all resources
// of a prefix and type, and of two annotations with one name the kubelet drops
// the second; so the devices are also in the CDIDevices field. Runtimes add a
// device that is named twice once.
func addCDIDevices(answer *v1beta1.ContainerAllocateResponse, r Resource, qualified []string) error {
	if err := checkVendor(r); err != nil {
		return err
	}
	for _, q := range qualified {
		if _, name, _ := strings.Cut(q, "="); !deviceName.MatchString(name) {
			return fmt.Errorf("%.80q is no name of a CDI device: want letters, digits and ._-:, a letter or digit first and last", name)
		}
	}
	if len(qualified) == 0 {
		return nil
	}
	answer.Annotations = map[string]string{"cdi.k8s.io/" + r.Prefix + "_" + cdiClass(r): strings.Join(qualified, ",")}
	for _, q := range qualified {
		answer.CdiDevices = append(answer.CdiDevices, &v1beta1.CDIDevice{Name: q})
	}
	return nil
}

// checkVendor checks the prefix against CDI's rule for vendors and Kubernetes'
// rule for names of annotations, which are narrower than that for resources.
func checkVendor(r Resource) error {
	const most = 63
	v := r.Prefix
	if !deviceName.MatchString(v) || strings.Contains(v, ":") || '0' <= v[0] && v[0] <= '9' {
		return fmt.Errorf("the prefix %.80q of resource %q cannot be the vendor of CDI devices: want a letter, then letters, digits and ._-, such as example.com", v, r.Name)
	}
	if name := v + "_" + cdiClass(r); len(name) > most {
		return fmt.Errorf("the prefix %.80q of resource %q is too long for CDI: %q has %d characters, at most %d are allowed", v, r.Name, name, len(name), most)
	}
	return nil
}
