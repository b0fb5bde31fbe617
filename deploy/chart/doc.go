// Package chart holds the Helm chart; its tests render it with Helm.
package chart
