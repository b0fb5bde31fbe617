package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// valuesOf has the place of each component's values.
var valuesOf = map[string]string{
	"csi-node": "csi", "csi-controller": "csi.controller", "csi-placement": "csi.placement", "fence": "fence", "takeover": "takeover", "dpu": "dpu",
	"sriov-plugin": "sriov.plugin", "sriov-daemon": "sriov.daemon", "snapshot-controller": "snapshotController",
}

const snapshotController = "snapshotController: {enabled: true}\n"

// option is a value that each component has, with what it changes there.
type option struct {
	value  func(component string) any
	change func(component string, o object, pod *corev1.PodTemplateSpec)
}

var options = map[string]option{
	"extraInitContainers": {
		value: func(component string) any { return []any{map[string]any{"name": "init-" + component, "image": "i"}} },
		change: func(component string, _ object, pod *corev1.PodTemplateSpec) {
			pod.Spec.InitContainers = slices.Insert(pod.Spec.InitContainers, 0, corev1.Container{Name: "init-" + component, Image: "i"})
		},
	},
	"extraContainers": {
		value: func(component string) any { return []any{map[string]any{"name": "more-" + component, "image": "i"}} },
		change: func(component string, _ object, pod *corev1.PodTemplateSpec) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "more-" + component, Image: "i"})
		},
	},
	"extraVolumes": {
		value: func(component string) any {
			return []any{map[string]any{"name": "of-" + component, "emptyDir": map[string]any{}}}
		},
		change: func(component string, _ object, pod *corev1.PodTemplateSpec) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "of-" + component, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		},
	},
	"livenessProbe": {
		value: func(component string) any { return map[string]any{"initialDelaySeconds": 7 + len(component)} },
		change: func(component string, _ object, pod *corev1.PodTemplateSpec) {
			for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for _, c := range containers {
					if c.Image == ours || c.Image == oursCeph || c.Name == "snapshot-controller" {
						c.LivenessProbe.InitialDelaySeconds = int32(7 + len(component))
					}
				}
			}
		},
	},
	"updateStrategy": {
		value: func(component string) any {
			return map[string]any{"type": map[string]string{"csi-placement": "RollingUpdate", "snapshot-controller": "Recreate", "takeover": "Recreate"}[component]}
		},
		change: func(component string, o object, _ *corev1.PodTemplateSpec) {
			switch component {
			case "csi-placement":
				o.typed.(*appsv1.Deployment).Spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
			case "snapshot-controller", "takeover":
				o.typed.(*appsv1.Deployment).Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			}
		},
	},
	"replicaCount": {
		value: func(string) any { return 3 },
		change: func(component string, o object, pod *corev1.PodTemplateSpec) {
			d := o.typed.(*appsv1.Deployment)
			d.Spec.Replicas = new(int32(3))
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: d.Spec.Selector,
			}}
		},
	},
}

// placeable are the components that have a value; nil: all.
var placeable = map[string][]string{
	"updateStrategy": {"csi-placement", "snapshot-controller", "takeover"},
	"replicaCount":   {"csi-placement", "snapshot-controller", "takeover"},
}

// The options of each component change the pods of that component, in every mode,
// and nothing else. All are set at once: none touches what another does, so a
// difference names its option.
func TestOptionsOfComponents(t *testing.T) {
	for mode, values := range map[string]string{"per node": perNode, "controller": controllerMode, "ceph": cephMode, "cephfs": cephFSMode, "spdk": spdkMode, "none": noneMode} {
		values += theOthers + snapshotController
		t.Run(mode, func(t *testing.T) {
			more := map[string]any{}
			want := render(t, release{values: values, apis: apis})
			for name, opt := range options {
				for component, at := range valuesOf {
					if of := placeable[name]; of == nil || slices.Contains(of, component) {
						more[at+"."+name] = opt.value(component)
					}
				}
				for _, o := range want {
					if component, pod := podOf(o); pod != nil && more[valuesOf[component]+"."+name] != nil {
						opt.change(component, o, pod)
					}
				}
			}
			same(t, want, render(t, release{values: with(t, values, more), apis: apis}))
		})
	}
}

// A DaemonSet can wait for the deletion of its pods.
func TestUpdateOnDelete(t *testing.T) {
	more := map[string]any{}
	for component, at := range valuesOf {
		if !slices.Contains([]string{"csi-controller", "csi-placement", "snapshot-controller", "takeover"}, component) {
			more[at+".updateStrategy.type"] = "OnDelete"
		}
	}
	values := perNode + theOthers
	want := render(t, release{values: values, apis: apis})
	for _, d := range of[appsv1.DaemonSet](want) {
		d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	same(t, want, render(t, release{values: with(t, values, more), apis: apis}))
}

// Values of the whole release change what they are for, and nothing else.
func TestOptionsOfReleases(t *testing.T) {
	args := func(container, from, to string) func([]object) []object {
		return func(all []object) []object {
			for _, w := range workloads(all) {
				for _, c := range w.containers() {
					if i := slices.Index(c.Args, from); i >= 0 && c.Name == container {
						c.Args[i] = to
					}
				}
			}
			return all
		}
	}
	for name, test := range map[string]struct {
		more   map[string]any
		change func([]object) []object
	}{
		"rbac.create": {
			more: map[string]any{"rbac.create": false},
			change: func(all []object) []object {
				return slices.DeleteFunc(all, func(o object) bool { return strings.HasPrefix(o.APIVersion, "rbac.") })
			},
		},
		"commonLabels": {
			more: map[string]any{"commonLabels": map[string]any{"owner": "sre", "team": "other"}},
			change: func(all []object) []object {
				for _, o := range all {
					metas := []*metav1.ObjectMeta{}
					if m, ok := o.typed.(interface{ GetObjectMeta() metav1.Object }); ok {
						metas = append(metas, m.GetObjectMeta().(*metav1.ObjectMeta))
					}
					if _, pod := podOf(o); pod != nil {
						metas = append(metas, &pod.ObjectMeta)
					}
					for _, m := range metas {
						m.Labels["owner"], m.Labels["team"] = "sre", "other"
					}
					if component, pod := podOf(o); pod != nil && component == "csi-node" {
						pod.Labels["team"] = "storage" // csi.podLabels has it
					}
				}
				return all
			},
		},
		"log level of the provisioner": {more: map[string]any{"sidecars.provisioner.logVerbosity": 5}, change: args("csi-provisioner", "--v=2", "--v=5")},
		"log level of the attacher":    {more: map[string]any{"sidecars.attacher.logVerbosity": 0}, change: args("csi-attacher", "--v=2", "--v=0")},
		"log level of the resizer":     {more: map[string]any{"sidecars.resizer.logVerbosity": 4}, change: args("csi-resizer", "--v=2", "--v=4")},
		"log level of the snapshotter": {more: map[string]any{"sidecars.snapshotter.logVerbosity": 4}, change: args("csi-snapshotter", "--v=2", "--v=4")},
		"log level of CSI-Addons":      {more: map[string]any{"sidecars.addons.logVerbosity": 5}, change: args("csi-addons", "--v=2", "--v=5")},
		"probe of the sidecars": {
			more: map[string]any{"sidecars.livenessProbe.failureThreshold": 9},
			change: func(all []object) []object {
				for _, w := range workloads(all) {
					for _, c := range w.containers() {
						if strings.HasPrefix(c.Name, "csi-") && c.LivenessProbe != nil {
							c.LivenessProbe.FailureThreshold = 9
						}
					}
				}
				return all
			},
		},
		"allowedTopologies": {
			more: map[string]any{"csi.storageClasses": []any{map[string]any{"allowedTopologies": []any{map[string]any{
				"matchLabelExpressions": []any{map[string]any{"key": "topology.cleat.dev/node", "values": []any{"node-1", "node-2"}}}}}}}},
			change: func(all []object) []object {
				all = slices.DeleteFunc(all, func(o object) bool { return o.Kind == "StorageClass" && o.Name == "thick" })
				for _, c := range of[storagev1.StorageClass](all) {
					c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "topology.cleat.dev/node", Values: []string{"node-1", "node-2"}}}}}
				}
				return all
			},
		},
		"extraDeploy": {
			more: map[string]any{"extraDeploy": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "{{ .Release.Name }}-more"}}}},
			change: func(all []object) []object {
				return append(all, object{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "cleat-more"},
					typed: &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "cleat-more"}}})
			},
		},
	} {
		for mode, values := range map[string]string{"per node": perNode, "controller": controllerMode} {
			if mode == "controller" && slices.Contains([]string{"allowedTopologies", "commonLabels"}, name) {
				continue // they are about classes and labels of perNode
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				values := values + snapshotController
				want := test.change(render(t, release{values: values, apis: apis}))
				same(t, want, render(t, release{values: with(t, values, test.more), apis: apis}))
			})
		}
	}
}

// with sets values by their paths.
func with(t *testing.T, values string, more map[string]any) string {
	t.Helper()
	all := map[string]any{}
	testkit.Must(t, yaml.Unmarshal([]byte(values), &all))
	for path, value := range more {
		at := all
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			next, _ := at[key].(map[string]any)
			if next == nil {
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = value
	}
	return string(testkit.Value(yaml.Marshal(all))(t))
}

// podOf returns the component and the pods of a workload.
func podOf(o object) (string, *corev1.PodTemplateSpec) {
	component := o.Labels["app.kubernetes.io/component"]
	switch w := o.typed.(type) {
	case *appsv1.DaemonSet:
		return component, &w.Spec.Template
	case *appsv1.Deployment:
		return component, &w.Spec.Template
	}
	return component, nil
}

// same compares objects by their names, and those of other projects by their
// text, without labels.
func same(t *testing.T, want, got []object) {
	t.Helper()
	index := func(all []object) map[string]any {
		m := map[string]any{}
		for _, o := range all {
			if m[o.String()] = o.typed; o.typed == nil {
				var spec map[string]any
				testkit.Must(t, yaml.Unmarshal([]byte(o.text), &spec))
				delete(spec["metadata"].(map[string]any), "labels")
				m[o.String()] = spec
			}
		}
		return m
	}
	w, g := index(want), index(got)
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if diff := cmp.Diff(w[name], g[name]); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
		delete(g, name)
	}
	for name := range g {
		t.Errorf("%s is new", name)
	}
}
