package inventory

import (
	"fmt"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/yaml"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// cdiVersion is the lowest with leading digits in device names and a host path;
// older runtimes reject higher ones.
const cdiVersion = "0.5.0"

const (
	cdiPrefix = "sriov-dp-"
	cdiSuffix = ".yaml"
)

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

// CDISpec composes the CDI specification of a resource's devices as YAML. CDI
// does not allow a device without edits: devices without nodes are left out,
// and without devices content is nil and the file must not exist.
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

// addCDIDevices adds CDI devices by annotation, as upstream, and by field. The
// kubelet drops duplicate annotation keys, which resources of a prefix share,
// so the field is required. Runtimes inject a device once even if it is named
// twice.
func addCDIDevices(answer *v1beta1.ContainerAllocateResponse, r Resource, qualified []string) error {
	if err := checkVendor(r); err != nil {
		return err
	}
	for _, q := range qualified {
		if _, name, _ := strings.Cut(q, "="); !deviceName.MatchString(name) {
			return fmt.Errorf("%.80q is not a valid CDI device name: want letters, digits and ._-:, a letter or digit first and last", name)
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

// checkVendor checks the prefix against the rules for CDI vendors and
// annotation keys, which are stricter than that for resource names.
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
