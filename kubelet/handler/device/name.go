package device

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

// checkName holds a name to the kubelet's rules for extended resources
// (IsExtendedResourceName of k8s.io/kubernetes/pkg/apis/core/v1/helper).
func checkName(name string) error {
	const quota = "requests." // a quota on the resource is written with it
	switch {
	case !strings.Contains(name, "/"):
		return errors.New("it has no domain; write domain/name, as example.com/gpu")
	case strings.Contains(name, "kubernetes.io/"):
		return errors.New("kubernetes.io/ is for what Kubernetes itself knows; take a domain of your own")
	case strings.HasPrefix(name, quota):
		return errors.New("names that begin with requests. are for quotas")
	}
	if wrong := content.IsLabelKey(quota + name); len(wrong) != 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}
