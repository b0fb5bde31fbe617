package csi_test

import (
	"fmt"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
)

// conditions returns the abnormal conditions that the controller and the node
// report for a volume, as "component STATUS Reason", and checks that the list
// agrees.
func (d *disk) conditions() (all []string) {
	d.Helper()
	one := testkit.Value(d.controller().ControllerGetVolumeHealth(d.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: d.id}))(d)
	here := testkit.Value(d.node().NodeGetVolumeHealth(d.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: d.id, VolumePublishPath: d.target, StagingTargetPath: d.staging}))(d)
	list := testkit.Value(d.controller().ControllerListVolumeHealth(d.Context(), &csi.ControllerListVolumeHealthRequest{}))(d)
	for _, e := range one.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, fmt.Sprint("controller ", e.GetStatus(), " ", e.GetReason()))
	}
	for _, e := range here.GetVolumeHealth().GetHealthStatuses() {
		all = append(all, fmt.Sprint("node ", e.GetStatus(), " ", e.GetReason()))
		if e.GetMessage() == "" {
			d.Errorf("condition %v has no message", e)
		}
	}
	listed := false
	for _, e := range list.GetEntries() {
		listed = listed || e.GetVolumeId() == d.id
	}
	if known := len(one.GetVolumeHealth().GetHealthStatuses()) > 0; listed != known {
		d.Errorf("listed as unhealthy: %v, conditions: %v", listed, all)
	}
	return all
}

// storage returns the abnormal conditions that the node reports for the pool.
func (r *rig) storage() (all []string) {
	r.Helper()
	answer := testkit.Value(r.node().NodeGetStorageHealth(r.Context(), &csi.NodeGetStorageHealthRequest{}))(r)
	for _, e := range answer.GetBackendHealth() {
		all = append(all, fmt.Sprint(e.GetStatus(), " ", e.GetReason()))
	}
	return all
}
