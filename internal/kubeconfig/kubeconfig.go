// Package kubeconfig returns how this process reaches the API server.
package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load reads a kubeconfig; "" is the configuration of a pod. It makes no API
// call. userAgent "": client-go's.
func Load(path, userAgent string) (*rest.Config, error) {
	c, err := load(path)
	if err != nil {
		return nil, err
	}
	c.UserAgent, c.WarningHandler = userAgent, rest.NoWarnings{}
	return c, nil
}

// LoadUser reads a user's kubeconfig as kubectl does: path "" is KUBECONFIG or
// ~/.kube/config, contextName "" the current context, whose namespace is the
// second result.
func LoadUser(path, contextName, userAgent string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	of := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: contextName})
	c, err := of.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := of.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	c.UserAgent, c.WarningHandler = userAgent, rest.NoWarnings{}
	return c, namespace, nil
}

func load(path string) (*rest.Config, error) {
	if path == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("this process is not in a pod, and no kubeconfig is set (--kubeconfig, --spdk-kubeconfig, --ceph-kubeconfig): %w", err)
		}
		return c, err
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return c, nil
}
