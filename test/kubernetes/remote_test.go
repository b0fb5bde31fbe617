package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// Helpers for releases whose volumes are on other machines.

// volumeHas waits until the volume of a claim has a size.
func (s *space) volumeHas(name, size string) {
	s.Helper()
	want := resource.MustParse(size)
	s.until(fmt.Sprintf("size %s of claim %s", size, name), func(context.Context) error {
		got := s.bound(name).Spec.Capacity[corev1.ResourceStorage]
		if got.Cmp(want) != 0 {
			return fmt.Errorf("the volume has %s", got.String())
		}
		return nil
	})
}

// nodeID returns the id that a driver's node service has registered.
func (s *space) nodeID(driver string) string {
	s.Helper()
	n := testkit.Value(testCluster.Client.StorageV1().CSINodes().Get(s.Context(), testCluster.Node, metav1.GetOptions{}))(s)
	for _, d := range n.Spec.Drivers {
		if d.Name == driver {
			return d.NodeID
		}
	}
	return ""
}

// attached waits until a volume is attached to a node.
func (s *space) attached(volume string) {
	s.Helper()
	s.until("attachment of "+volume, func(ctx context.Context) error {
		all, err := testCluster.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, a := range all.Items {
			if of := a.Spec.Source.PersistentVolumeName; of == nil || *of != volume {
				continue
			}
			if !a.Status.Attached {
				return fmt.Errorf("not attached: %+v", a.Status.AttachError)
			}
			return nil
		}
		return errors.New("no VolumeAttachment")
	})
}

// noDenials checks the logs of a release, of pods that a selector selects: the API
// server denied no container a request. The logs contain started: one that was
// restarted will log it.
func (s *space) noDenials(r release, started, pods, containers string) {
	s.Helper()
	s.until(fmt.Sprintf("logs of %s with %q", r.name, started), func(ctx context.Context) error {
		out, err := testCluster.Kubectl(ctx, "", "-n", system, "logs", "-l", "app.kubernetes.io/instance="+r.name+pods, containers, "--tail=-1", "--max-log-requests=12")
		if strings.Contains(out, "forbidden") {
			s.Fatalf("a container of %s lacks a permission:\n%s", r.name, out)
		}
		if err == nil && !strings.Contains(out, started) {
			err = errors.New(out)
		}
		return err
	})
}
