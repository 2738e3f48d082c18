// Command modelcache is the ModelCache controller on controller-runtime, the peer that pyreconcile is measured against.
//
// For every ModelCache it makes three writes: a finalizer, a ConfigMap <name>-cfg that it owns, and the status. What is
// already so is not written again.
package main

import (
	"context"
	"flag"
	"maps"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const cleanup = "labs.example.dev/cleanup"

var group = schema.GroupVersion{Group: "labs.example.dev", Version: "v1"}

// ModelCache says what to keep warm.
type ModelCache struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Model    string `json:"model"`
		Replicas int    `json:"replicas"`
	} `json:"spec"`
	Status struct {
		Phase              string             `json:"phase,omitempty"`
		ObservedGeneration int64              `json:"observedGeneration,omitempty"`
		Conditions         []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitempty"`
}

// DeepCopyObject makes a ModelCache a runtime.Object.
func (in *ModelCache) DeepCopyObject() runtime.Object {
	out := new(ModelCache)
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Status.Conditions = nil
	for i := range in.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *in.Status.Conditions[i].DeepCopy())
	}
	return out
}

// ModelCacheList is what a list answers.
type ModelCacheList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelCache `json:"items"`
}

// DeepCopyObject makes a ModelCacheList a runtime.Object.
func (in *ModelCacheList) DeepCopyObject() runtime.Object {
	out := &ModelCacheList{TypeMeta: in.TypeMeta, ListMeta: *in.ListMeta.DeepCopy()}
	for i := range in.Items {
		out.Items = append(out.Items, *in.Items[i].DeepCopyObject().(*ModelCache))
	}
	return out
}

type reconciler struct {
	client.Client
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cache := new(ModelCache)
	if err := r.Get(ctx, request.NamespacedName, cache); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cache.DeletionTimestamp != nil {
		if !controllerutil.RemoveFinalizer(cache, cleanup) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, r.Update(ctx, cache)
	}
	if controllerutil.AddFinalizer(cache, cleanup) {
		if err := r.Update(ctx, cache); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.ensureConfig(ctx, cache); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.ensureStatus(ctx, cache)
}

func (r *reconciler) ensureConfig(ctx context.Context, cache *ModelCache) error {
	config := new(corev1.ConfigMap)
	config.Namespace, config.Name = cache.Namespace, cache.Name+"-cfg"
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, config, func() error {
		data := map[string]string{"model": cache.Spec.Model, "replicas": strconv.Itoa(cache.Spec.Replicas)}
		if !maps.Equal(config.Data, data) {
			config.Data = data
		}
		return ctrl.SetControllerReference(cache, config, r.Scheme())
	})
	return err
}

func (r *reconciler) ensureStatus(ctx context.Context, cache *ModelCache) error {
	status := &cache.Status
	if status.Phase == "Ready" && status.ObservedGeneration == cache.Generation {
		return nil
	}
	status.Phase, status.ObservedGeneration = "Ready", cache.Generation
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Cached"}
	ready.Message, ready.ObservedGeneration = cache.Spec.Model+" is cached", cache.Generation
	if len(status.Conditions) == 0 {
		ready.LastTransitionTime = metav1.Now()
		status.Conditions = []metav1.Condition{ready}
	} else {
		ready.LastTransitionTime = status.Conditions[0].LastTransitionTime
		status.Conditions[0] = ready
	}
	return r.Status().Update(ctx, cache)
}

func run(workers int, metrics string) error {
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		return err
	}
	types.AddKnownTypes(group, new(ModelCache), new(ModelCacheList))
	metav1.AddToGroupVersion(types, group)

	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  types,
		Metrics: server.Options{BindAddress: metrics},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(new(ModelCache)).
		Owns(new(corev1.ConfigMap)).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&reconciler{manager.GetClient()})
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func main() {
	workers := flag.Int("workers", 1, "reconciles that may run at once")
	metrics := flag.String("metrics-bind-address", "0", "where metrics are served; 0 for nowhere")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*workers, *metrics); err != nil {
		ctrl.Log.Error(err, "the manager ended")
		os.Exit(1)
	}
}
