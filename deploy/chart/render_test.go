package chart

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/kubernetes/programs"
	"github.com/cleatproject/cleat/test/testkit"
)

// peers builds Helm and cleat once for all tests.
var peers = sync.OnceValues(func() (programPaths, error) {
	var p programPaths
	var log bytes.Buffer
	set, err := programs.Build(background, &log, "helm")
	if err != nil {
		return p, fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	dir, err := os.MkdirTemp("", "cleat-chart-")
	if err != nil {
		return p, err
	}
	p = programPaths{helm: set.Path("helm"), cleat: filepath.Join(dir, "cleat"), dir: dir}
	return p, testkit.BuildTo(background, p.cleat, testkit.Cleat)
})

type programPaths struct{ helm, cleat, dir string }

// API groups of CRDs that are not part of Kubernetes.
var apis = []string{"snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1", "csiaddons.openshift.io/v1alpha1", "monitoring.coreos.com/v1", "cbt.storage.k8s.io/v1beta1"}

// release is a release to render; the zero value uses the chart's defaults.
type release struct {
	name, namespace string
	values          string   // YAML
	apis            []string // additional APIs of the cluster
	crds            bool     // with CRDs
	kubernetes      string   // version of the cluster; default 1.37.0
}

// helm renders the chart and returns the output and Helm's error.
func (r release) helm(t *testing.T) (string, error) {
	t.Helper()
	p := testkit.Value(peers())(t)
	if r.name == "" {
		r.name = "cleat"
	}
	if r.namespace == "" {
		r.namespace = "storage"
	}
	args := []string{"template", r.name, ".", "--namespace", r.namespace, "--kube-version", cmp.Or(r.kubernetes, "1.37.0"), "--values", "-"}
	for _, a := range r.apis {
		args = append(args, "--api-versions="+a)
	}
	if r.crds {
		args = append(args, "--include-crds")
	}
	cmd := exec.CommandContext(t.Context(), p.helm, args...)
	// A process of 70 ms needs no garbage collector: it takes a quarter of the time.
	cmd.Env = append(os.Environ(), "GOGC=off", "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(r.values)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return errs.String(), err
	}
	return out.String(), nil
}

// object is an object of a rendered chart. Objects of Kubernetes' own kinds are
// also decoded strictly.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	text              string
	typed             runtime.Object
}

func (o object) String() string { return o.Kind + " " + o.Namespace + "/" + o.Name }

// kinds maps each kind to an empty object. Kinds of other projects are nil:
// only their metadata is checked.
var kinds = map[string]func() runtime.Object{
	"v1/ConfigMap":                                              func() runtime.Object { return new(corev1.ConfigMap) },
	"v1/Namespace":                                              func() runtime.Object { return new(corev1.Namespace) },
	"v1/Secret":                                                 func() runtime.Object { return new(corev1.Secret) },
	"v1/Service":                                                func() runtime.Object { return new(corev1.Service) },
	"v1/ServiceAccount":                                         func() runtime.Object { return new(corev1.ServiceAccount) },
	"apps/v1/DaemonSet":                                         func() runtime.Object { return new(appsv1.DaemonSet) },
	"apps/v1/Deployment":                                        func() runtime.Object { return new(appsv1.Deployment) },
	"networking.k8s.io/v1/NetworkPolicy":                        func() runtime.Object { return new(networkingv1.NetworkPolicy) },
	"policy/v1/PodDisruptionBudget":                             func() runtime.Object { return new(policyv1.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1/ClusterRole":                  func() runtime.Object { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding":           func() runtime.Object { return new(rbacv1.ClusterRoleBinding) },
	"rbac.authorization.k8s.io/v1/Role":                         func() runtime.Object { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1/RoleBinding":                  func() runtime.Object { return new(rbacv1.RoleBinding) },
	"storage.k8s.io/v1/CSIDriver":                               func() runtime.Object { return new(storagev1.CSIDriver) },
	"storage.k8s.io/v1/StorageClass":                            func() runtime.Object { return new(storagev1.StorageClass) },
	"storage.k8s.io/v1/VolumeAttributesClass":                   func() runtime.Object { return new(storagev1.VolumeAttributesClass) },
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy": func() runtime.Object { return new(admissionv1.ValidatingAdmissionPolicy) },
	"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": func() runtime.Object { return new(admissionv1.ValidatingAdmissionPolicyBinding) },
	"security.openshift.io/v1/SecurityContextConstraints":              nil,
	"snapshot.storage.k8s.io/v1/VolumeSnapshotClass":                   nil,
	"groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass":         nil,
	"apiextensions.k8s.io/v1/CustomResourceDefinition":                 nil,
	"monitoring.coreos.com/v1/ServiceMonitor":                          nil,
	"monitoring.coreos.com/v1/PodMonitor":                              nil,
	"cbt.storage.k8s.io/v1beta1/SnapshotMetadataService":               nil,
	"monitoring.coreos.com/v1/PrometheusRule":                          nil,
}

var separator = regexp.MustCompile(`(?m)^---.*\n`)

// rendered caches the objects of releases.
var rendered = map[string][]object{}

// render renders a valid release and decodes all objects. The caller owns them.
func render(t *testing.T, r release) []object {
	t.Helper()
	key := fmt.Sprintf("%+v", r)
	if _, ok := rendered[key]; !ok {
		out, err := r.helm(t)
		if err != nil {
			t.Fatalf("helm template: %v\n%s\nvalues:\n%s", err, out, r.values)
		}
		rendered[key] = decode(t, out)
	}
	all := slices.Clone(rendered[key])
	for i, o := range all {
		o.ObjectMeta.DeepCopyInto(&all[i].ObjectMeta)
		if o.typed != nil {
			all[i].typed = o.typed.DeepCopyObject()
		}
	}
	return all
}

func decode(t *testing.T, text string) []object {
	t.Helper()
	var all []object
	for _, part := range separator.Split(text, -1) {
		var o object
		if err := yaml.Unmarshal([]byte(part), &o); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		if o.Kind == "" {
			continue // only comments
		}
		o.text = part
		empty, known := kinds[o.APIVersion+"/"+o.Kind]
		if !known {
			t.Fatalf("unknown kind %s/%s:\n%s", o.APIVersion, o.Kind, part)
		}
		if empty != nil {
			o.typed = empty()
			if err := yaml.UnmarshalStrict([]byte(part), o.typed); err != nil {
				t.Fatalf("%v: %v\n%s", o, err, part)
			}
		}
		all = append(all, o)
	}
	return all
}

func of[T any](all []object) []*T {
	var some []*T
	for _, o := range all {
		if typed, ok := any(o.typed).(*T); ok {
			some = append(some, typed)
		}
	}
	return some
}

// workload has the common fields of DaemonSets and Deployments.
type workload struct {
	name     string
	labels   map[string]string
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

func workloads(all []object) []workload {
	var w []workload
	for _, d := range of[appsv1.DaemonSet](all) {
		w = append(w, workload{d.Name, d.Labels, d.Spec.Selector, d.Spec.Template})
	}
	for _, d := range of[appsv1.Deployment](all) {
		w = append(w, workload{d.Name, d.Labels, d.Spec.Selector, d.Spec.Template})
	}
	return w
}

func (w workload) containers() []corev1.Container {
	return append(append([]corev1.Container{}, w.template.Spec.InitContainers...), w.template.Spec.Containers...)
}

// command runs a program and returns its combined output.
func command(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	return string(out), err
}
