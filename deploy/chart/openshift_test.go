package chart

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// OpenShift admits a pod by the SecurityContextConstraints of its service
// account. A release has one for all its pods.
func TestOpenShift(t *testing.T) {
	const openshift = "security.openshift.io/v1"
	for name, values := range variety {
		t.Run(name, func(t *testing.T) {
			all := render(t, release{values: values, apis: append(slices.Clone(apis), openshift)})
			var constraints []securityContextConstraints
			for _, o := range all {
				if o.Kind != "SecurityContextConstraints" {
					continue
				}
				var c securityContextConstraints
				testkit.Must(t, yaml.UnmarshalStrict([]byte(o.text), &c))
				constraints = append(constraints, c)
			}
			if len(constraints) != 1 {
				t.Fatalf("%d SecurityContextConstraints, want one", len(constraints))
			}
			c := constraints[0]
			for _, w := range workloads(all) {
				c.admits(t, w)
			}
			for _, account := range of[corev1.ServiceAccount](all) {
				if !slices.Contains(c.Users, "system:serviceaccount:storage:"+account.Name) {
					t.Errorf("%s is not allowed to use the SecurityContextConstraints: %v", account.Name, c.Users)
				}
			}
			for _, o := range render(t, release{values: values, apis: apis}) {
				if o.APIVersion == openshift {
					t.Errorf("%v is rendered for a cluster without its API", o)
				}
			}
		})
	}
}

// securityContextConstraints has the fields that admits checks and the required
// ones.
type securityContextConstraints struct {
	APIVersion, Kind         string
	Metadata                 map[string]any
	AllowHostDirVolumePlugin bool
	AllowHostNetwork         bool
	AllowHostPorts           bool
	AllowHostPID             bool
	AllowHostIPC             bool
	AllowPrivilegedContainer bool
	AllowPrivilegeEscalation bool
	AllowedCapabilities      []corev1.Capability
	ReadOnlyRootFilesystem   bool
	RunAsUser, SeLinuxContext, FsGroup,
	SupplementalGroups struct{ Type string }
	SeccompProfiles []string
	Volumes         []string
	Users           []string
}

// admits fails unless a pod is admitted, and unless the pod needs the
// permissions that only some pods need.
func (s securityContextConstraints) admits(t *testing.T, w workload) {
	t.Helper()
	spec := w.template.Spec
	if spec.HostNetwork && !(s.AllowHostNetwork && s.AllowHostPorts) || spec.HostPID && !s.AllowHostPID {
		t.Errorf("%s uses the host's network or PID namespace", w.name)
	}
	for _, v := range spec.Volumes {
		kind := ""
		switch {
		case v.HostPath != nil:
			kind = "hostPath"
		case v.EmptyDir != nil:
			kind = "emptyDir"
		case v.Projected != nil:
			kind = "projected"
		case v.Secret != nil:
			kind = "secret"
		case v.ConfigMap != nil:
			kind = "configMap"
		}
		if !slices.Contains(s.Volumes, kind) {
			t.Errorf("%s has volume %s of kind %q", w.name, v.Name, kind)
		}
	}
	for _, c := range w.containers() {
		if p := c.SecurityContext.Privileged; p != nil && *p && !(s.AllowPrivilegedContainer && s.AllowPrivilegeEscalation) {
			t.Errorf("%s/%s is privileged", w.name, c.Name)
		}
		if caps := c.SecurityContext.Capabilities; caps != nil {
			for _, capability := range caps.Add {
				if !slices.Contains(s.AllowedCapabilities, capability) {
					t.Errorf("%s/%s has capability %s", w.name, c.Name, capability)
				}
			}
		}
	}
	for what, strategy := range map[string]string{"runAsUser": s.RunAsUser.Type, "seLinuxContext": s.SeLinuxContext.Type, "fsGroup": s.FsGroup.Type, "supplementalGroups": s.SupplementalGroups.Type} {
		if strategy != "RunAsAny" {
			t.Errorf("%s has %q", what, strategy)
		}
	}
	if !s.ReadOnlyRootFilesystem || !s.AllowHostDirVolumePlugin || s.AllowHostIPC || !slices.Contains(s.SeccompProfiles, "runtime/default") {
		t.Errorf("%+v", s)
	}
}
