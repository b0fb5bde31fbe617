package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// AllocateSettings are the machine-dependent inputs of an allocation.
type AllocateSettings struct {
	CDI bool // device nodes come from the file of CDISpec
	// Exists reports whether the machine has a device node; nil: all exist.
	Exists func(path string) bool
}

// Allocate composes the response for one container. Device nodes that are
// missing are joined in the error.
func Allocate(r Resource, members []Member, s AllocateSettings) (*v1beta1.ContainerAllocateResponse, error) {
	var errs []error
	var ids, qualified []string
	var nodes []deviceNode
	info := map[string]map[string]map[string]string{}
	for _, m := range members {
		edits := s.edits(r, m)
		errs = append(errs, edits.errs...)
		ids = append(ids, m.ID)
		info[m.ID] = edits.info
		nodes = append(nodes, edits.nodes...)
		// CDI does not allow a device without edits.
		if len(edits.nodes) > 0 {
			qualified = append(qualified, cdiKind(r)+"="+m.ID)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("describe the devices of %s: %w", r.FullName(), err)
	}
	name := r.EnvVariable()
	answer := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{name: strings.Join(ids, ","), name + "_INFO": string(text)}}
	if s.CDI {
		return answer, addCDIDevices(answer, r, qualified)
	}
	answer.Devices = deviceSpecs(nodes)
	return answer, nil
}

func deviceSpecs(nodes []deviceNode) []*v1beta1.DeviceSpec {
	var all []*v1beta1.DeviceSpec
	for _, n := range uniqueNodes(nodes) {
		all = append(all, &v1beta1.DeviceSpec{HostPath: n.host, ContainerPath: n.container, Permissions: nodePermissions})
	}
	return all
}

// Topology returns the NUMA node of a device; nil if it has none or the
// resource excludes it.
func Topology(r Resource, m Member) *v1beta1.TopologyInfo {
	if r.ExcludeTopology || m.Function == nil || m.Function.NUMA < 0 {
		return nil
	}
	return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(m.Function.NUMA)}}}
}
