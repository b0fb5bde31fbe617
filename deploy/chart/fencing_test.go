package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/cleatproject/cleat/test/testkit"
	"sigs.k8s.io/yaml"
)

// named returns the object of a type and name.
func named[T any, P interface {
	*T
	GetName() string
}](t *testing.T, all []object, name string) *T {
	t.Helper()
	list := of[T](all)
	n := slices.IndexFunc(list, func(o *T) bool { return P(o).GetName() == name })
	if n < 0 {
		t.Fatalf("no %T is named %s", new(T), name)
	}
	return list[n]
}

// With one value the controller of a network engine accepts fences, and with another
// one cleat takeover uses it for the release's own driver.
func TestFenceListener(t *testing.T) {
	for _, mode := range []string{cephMode, cephFSMode, spdkMode, strings.Replace(spdkMode, "addons: {enabled: true}", "addons: {enabled: false}", 1)} {
		all := render(t, release{values: mode + fenceListener + "takeover: {enabled: true}\nnetworkPolicy: {enabled: true}", apis: apis})
		pod := named[appsv1.Deployment](t, all, "cleat-csi-controller").Spec.Template
		c := pod.Spec.InitContainers[0]
		for _, want := range []string{"--fence-listen=:9071", "--fence-tls-cert=/etc/cleat/fence-tls/tls.crt", "--fence-tls-key=/etc/cleat/fence-tls/tls.key", "--fence-tls-ca=/etc/cleat/fence-tls/ca.crt"} {
			if !slices.Contains(c.Args, want) {
				t.Errorf("%q is not in %q", want, c.Args)
			}
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/cleat/fence-tls" && m.ReadOnly }) ||
			!slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "fencing" }) {
			t.Errorf("the Secret is not mounted: %+v", c.VolumeMounts)
		}
		service := named[corev1.Service](t, all, "cleat-csi-fence").Spec
		if service.ClusterIP != "None" || service.Ports[0].Port != 9071 {
			t.Errorf("%+v", service)
		}
		for key, value := range service.Selector {
			if pod.Labels[key] != value {
				t.Errorf("the Service selects %s=%s, the pods have %v", key, value, pod.Labels)
			}
		}
		ingress := named[networkingv1.NetworkPolicy](t, all, "cleat-csi-controller").Spec.Ingress
		if from := ingress[len(ingress)-1]; from.Ports[0].Port.IntValue() != 9071 || from.From[0].PodSelector.MatchLabels["app.kubernetes.io/component"] != "takeover" {
			t.Errorf("%+v", from)
		}

		coverage := coverageOf(t, all)
		if len(coverage.Drivers) != 1 || coverage.Drivers[0].Driver != "csi.cleat.dev" || coverage.Drivers[0].Backend != coverage.Backends[0].Name || coverage.Backends[0].Endpoint != "cleat-csi-fence.storage:9071" {
			t.Errorf("%+v", coverage)
		}
		client := named[appsv1.Deployment](t, all, "cleat-takeover").Spec.Template.Spec
		if !slices.ContainsFunc(client.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "fencing" }) {
			t.Errorf("takeover has no certificate: %+v", client.Volumes)
		}
	}
}

// Rules in the values win, and rules of other drivers stay. The nodes of a DPU cluster
// are not in this one.
func TestOwnCoverage(t *testing.T) {
	for values, want := range map[string]string{
		"takeover: {enabled: true, coverage: {drivers: [{driver: csi.cleat.dev, local: true}]}}":                                                          "csi.cleat.dev=",
		"takeover: {enabled: true, coverage: {drivers: [{driver: x, backend: a}], backends: [{name: a, endpoint: \"a:1\"}]}}":                             "x=a csi.cleat.dev=cleat-csi-fence",
		"takeover: {enabled: true, tlsSecret: own, coverage: {drivers: [{driver: csi.cleat.dev, backend: a}], backends: [{name: a, endpoint: \"a:1\"}]}}": "csi.cleat.dev=a",
	} {
		all := render(t, release{values: cephMode + fenceListener + values, apis: apis})
		if got := rulesOf(t, all); got != want {
			t.Errorf("with %s the rules are %q, want %q", values, got, want)
		}
		if strings.Contains(values, "own") {
			volumes := named[appsv1.Deployment](t, all, "cleat-takeover").Spec.Template.Spec.Volumes
			if !slices.ContainsFunc(volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == "own" }) {
				t.Errorf("takeover.tlsSecret is not used: %+v", volumes)
			}
		}
	}
	host := strings.Replace(hostCluster, "  snapshots", fenceListener+"  snapshots", 1) + "takeover: {enabled: true, coverage: {drivers: [{driver: x}]}}"
	if got := rulesOf(t, render(t, release{values: host, apis: apis})); got != "x=" {
		t.Errorf("the rules are %q", got)
	}
}

// coverage is what the tests read of takeover's file.
type coverage struct {
	Drivers  []struct{ Driver, Backend string }
	Backends []struct{ Name, Endpoint string }
}

func coverageOf(t *testing.T, all []object) (c coverage) {
	t.Helper()
	testkit.Must(t, yaml.Unmarshal([]byte(named[corev1.ConfigMap](t, all, "cleat-takeover").Data["coverage.yaml"]), &c))
	return c
}

func rulesOf(t *testing.T, all []object) string {
	t.Helper()
	var rules []string
	for _, r := range coverageOf(t, all).Drivers {
		rules = append(rules, r.Driver+"="+r.Backend)
	}
	return strings.Join(rules, " ")
}
